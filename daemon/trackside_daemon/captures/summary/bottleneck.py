"""The class of bottleneck of a rank, with the numbers that decide."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trackside_daemon.model.text import duration

CLASSES = ("data", "host", "compute", "communication", "copy", "memory")

Row = dict[str, Any]


def bottleneck(profile: Mapping[str, Any]) -> dict[str, Any]:
    """Return the class with the largest share of a step.

    Args:
        profile: The summary of a rank: ``parts``, its tables and ``host``.

    Returns:
        ``class``, ``share``, the ``shares`` of all classes, the ``name`` and ``source`` of the operator or the function
        with most of its time, and a ``text`` of one line.
    """
    part = profile["parts"]
    seconds = _seconds(part, profile["host"], gpu=profile["device"] == "gpu")
    worst = max(CLASSES, key=lambda name: seconds[name])
    row, detail = _DESCRIPTIONS[worst](profile)
    whole = part["seconds"] or 1.0
    numbers = f"{duration(seconds[worst])} of {duration(whole)} a step"
    return {
        "class": worst,
        "share": seconds[worst] / whole,
        "shares": {name: seconds[name] / whole for name in CLASSES},
        "name": row.get("name", ""),
        "source": row.get("source", ""),
        "text": f"{worst}: {numbers}; {detail}",
    }


def overall(ranks: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the bottleneck of a capture with its ``rank``; empty without ranks.

    It is the one of the rank with the largest share. Where ranks wait for one that arrives last, it is communication, and
    ``last`` is that rank.
    """
    if not ranks:
        return {}
    waits = {rank: profile["bottleneck"]["shares"]["communication"] for rank, profile in ranks.items()}
    last, longest = min(waits, key=lambda rank: waits[rank]), max(waits, key=lambda rank: waits[rank])
    own = ranks[last]["bottleneck"]
    if waits[longest] - waits[last] > 1 / len(CLASSES) and ranks[longest]["bottleneck"]["class"] == "communication":
        found = ranks[longest]["bottleneck"]
        text = f"rank {longest}: {found['text']}; rank {last} arrives last: {own['text']}"
        return {**found, "rank": int(longest), "last": int(last), "text": text}
    worst = max(ranks, key=lambda rank: ranks[rank]["bottleneck"]["share"])
    return {**ranks[worst]["bottleneck"], "rank": int(worst)}


def milliseconds(seconds: float) -> str:
    """Return seconds as milliseconds with two or three digits."""
    value = seconds * 1000
    return f"{value:.0f}" if value >= 99.5 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def _seconds(part: Mapping[str, float], host: Mapping[str, Any], *, gpu: bool) -> dict[str, float]:
    """Return the seconds of a step that each class explains. On a CPU, operators hold their own dispatch and allocations."""
    work = part["compute"] + part["overlapped"]
    idle = part["idle"] - part["after_sync"]
    memory = min(host["allocation"], idle if gpu else work)
    launch = 0.0 if gpu else min(host["launch"], work - memory)
    return {
        "data": part["data"],
        "host": idle + launch - (memory if gpu else 0.0),
        "compute": max(0.0, work - launch - (0.0 if gpu else memory)),
        "communication": part["exposed"],
        "copy": part["copies"] + part["after_sync"],
        "memory": memory,
    }


def _largest(rows: Sequence[Row], fits: Callable[[str], bool] = lambda _: True, *, loader: bool | None = None) -> Row:
    return next((row for row in rows if fits(row["name"]) and loader in (None, bool(row.get("loader")))), {})


def _where(row: Row) -> str:
    """Return the name of a row with its time and source."""
    seconds = row.get("seconds", row.get("cpu", 0.0) + row.get("gpu", 0.0))
    inner = row.get("inner", "")
    place = f" in {inner}" if inner.startswith("<") else f", {row['source']}" if row["source"] != row["name"] else ""
    return f"{row['name']} {duration(seconds)}{place if row['source'] else ''}"


def _data(profile: Mapping[str, Any]) -> tuple[Row, str]:
    row = _largest(profile["functions"], loader=True) or {"name": "enumerate(DataLoader)"}
    return row, f"the loop waits for its next batch{f': {_where(row)}' if 'seconds' in row else ''}"


def _host(profile: Mapping[str, Any]) -> tuple[Row, str]:
    host, part = profile["host"], profile["parts"]
    if profile["device"] == "cpu" and host["launch"] > part["idle"]:
        row = _largest(profile["operators"], lambda name: name == host["called"]) or {
            "name": host["called"],
            "source": "",
        }
        each = (part["compute"] + part["overlapped"]) / max(1.0, host["operators"])
        return (
            row,
            f"{host['operators']:.0f} operators of {duration(each)} on average, most in {_where(row)}",
        )
    row = _largest(profile["functions"], loader=False)
    gap = host["gap"]
    if not row:
        row = {"name": gap["after"]}
    detail = (
        _where(row) if "seconds" in row else f"{duration(gap['seconds'])} after {gap['after']}, before {gap['before']}"
    )
    return row, f"{'the GPU has no work' if profile['device'] == 'gpu' else 'no operator runs'}: {detail}"


def _compute(profile: Mapping[str, Any]) -> tuple[Row, str]:
    row: Row = max(profile["operators"], key=lambda row: row[profile["device"]], default={})
    return row, f"most in {_where(row)}" if row else "no operator is recorded"


def _communication(profile: Mapping[str, Any]) -> tuple[Row, str]:
    row = dict(profile["communication"][0]) if profile["communication"] else {}
    return row, f"waits for {_where(row)}" if row else "waits for other ranks"


def _copy(profile: Mapping[str, Any]) -> tuple[Row, str]:
    if profile["parts"]["after_sync"] > profile["parts"]["copies"]:
        row = _largest(profile["operators"], lambda name: name in {"aten::_local_scalar_dense", "aten::item"})
        synced = f"the GPU is idle after {profile['host']['syncs']:.3g} synchronisations a step"
        return row, f"{synced}{f', from {_where(row)}' if row else ''}"
    row = _largest(profile["operators"], lambda name: "copy" in name or "Memcpy" in name)
    return row, f"copies in {_where(row)}" if row else "copies"


def _memory(profile: Mapping[str, Any]) -> tuple[Row, str]:
    row = _largest(profile["operators"], lambda name: name.startswith(("aten::empty", "aten::resize_")))
    return row, f"allocations{f', most in {_where(row)}' if row else ''}"


_DESCRIPTIONS: dict[str, Callable[[Mapping[str, Any]], tuple[Row, str]]] = {
    "data": _data,
    "host": _host,
    "compute": _compute,
    "communication": _communication,
    "copy": _copy,
    "memory": _memory,
}
