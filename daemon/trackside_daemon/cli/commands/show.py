"""What `trackside show` and `trackside compare` tell of runs: sums over their series, and the lines to print."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from trackside_daemon.cli.commands.table import moment, table, took, width
from trackside_daemon.model.text import cells, cut, duration, head, number, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

LOW = frozenset(
    ("loss", "losses", "error", "errors", "err", "perplexity", "ppl", "nll", "mae", "mse", "rmse", "wer", "cer", "fid")
) | frozenset(("time", "duration", "seconds", "sec", "ms", "latency", "wait"))
HIGH = frozenset(
    ("accuracy", "acc", "top1", "top5", "score", "scores", "f1", "bleu", "rouge", "auc", "precision", "recall", "iou")
) | frozenset(("dice", "psnr", "ssim", "reward", "throughput", "mfu"))

EVENTS = 10
"""So many of the newest events are shown."""

LEAST = 0.0005
"""What less of the time is lost to is not named."""

COLUMN = 10
"""A run's column in a comparison is no narrower; more runs than fit so make another table."""

LINES = 4
"""A cell of a comparison is wrapped to so many lines at most."""


def best(key: str, low: Any, high: Any) -> Any:
    """The best value that a metric had, by the words of its key; None where they do not say what is better.

    The minimum of losses, errors, perplexities and times (`LOW`), the maximum of accuracies, scores and rates (`HIGH`);
    of ``error_score`` the minimum.
    """
    words = {word.lower() for word in re.findall(r"[A-Z]?[a-z]+\d?|[A-Z]+\d?", key)}
    if words & LOW:
        return low
    return high if words & HIGH else None


def metrics(run: Mapping[str, Any], rank: int | None = None) -> list[dict[str, Any]]:
    """Each key of a rank over all attempts: ``final``, ``best``, ``mean``, ``min``, ``max``, ``step``, ``count``.

    Args:
        run: As the history has it.
        rank: None for the lowest.
    """
    wanted = min((one["rank"] for one in run["metrics"]), default=0) if rank is None else rank
    found: dict[str, list[Mapping[str, Any]]] = {}
    for one in run["metrics"]:
        if one["rank"] == wanted:
            found.setdefault(one["key"], []).append(one)
    return [_summed(key, parts) for key, parts in found.items()]


def _summed(key: str, parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Attempts as one; the mean leaves out those that have none, and weighs the others by their samples."""
    last = max(parts, key=lambda part: part["attempt"])
    lows = [part["min"] for part in parts if part["min"] != "nan"]
    highs = [part["max"] for part in parts if part["max"] != "nan"]
    low, high = min(lows, key=float, default="nan"), max(highs, key=float, default="nan")
    weights = [(float(part["mean"]), part["count"]) for part in parts if part["mean"] != "nan"]
    mean = sum(value * count for value, count in weights) / sum(count for _, count in weights) if weights else "nan"
    return {
        "key": key,
        "final": last["last"],
        "best": best(key, low, high),
        "mean": mean,
        "min": low,
        "max": high,
        "step": last["last_step"],
        "count": sum(part["count"] for part in parts),
    }


def flat(value: Any, name: str = "") -> dict[str, Any]:
    """A configuration with dots between the names: ``{"model": {"layers": 2}}`` is ``model.layers`` 2."""
    if isinstance(value, dict) and value:
        return {
            key: one
            for part, inner in value.items()
            for key, one in flat(inner, f"{name}.{part}" if name else part).items()
        }
    return {name: value} if name else {}


def setting(value: Any) -> str:
    """An entry of a configuration, to be shown."""
    return shown(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def config(run: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of the last attempt that has one, flat."""
    return next((flat(one["config"]) for one in reversed(run["attempt_list"]) if one.get("config") is not None), {})


def describe(
    run: Mapping[str, Any], events: Sequence[Mapping[str, Any]], rank: int | None, now: float
) -> Iterator[str]:
    """The lines of `trackside show`; *run* has its alerts too."""
    yield from _facts(run, now)
    ranks = sorted({one["rank"] for one in run["metrics"]})
    rows = [
        [shown(one["key"]), *(number(one[name]) for name in ("final", "best", "mean", "min", "max", "step", "count"))]
        for one in metrics(run, rank)
    ]
    odd = [f"{one['key']} {one['nonfinite']}" for one in run["metrics"] if one.get("nonfinite")]
    if rows:
        of = f" of rank {ranks[0] if rank is None else rank} ({len(ranks)} ranks: --rank N for another)"
        yield from ("", f"metrics{of if len(ranks) > 1 else ''}:")
        header = ["", "FINAL", "BEST", "MEAN", "MIN", "MAX", "STEP", "SAMPLES"]
        yield from table(header, rows, right="<>>>>>>>", flexible="~")
    yield from _listed("NaN or infinite", odd)
    yield from _listed("attempts", _attempts(run, now) if len(run["attempt_list"]) > 1 else [])
    yield from _pairs("configuration", {key: setting(value) for key, value in config(run).items()})
    yield from _listed("alerts", [_alert(one, run) for one in run["alerts"]])
    newest = f"events (the newest {EVENTS} of {len(events)})" if len(events) > EVENTS else "events"
    yield from _listed(newest, [_event(one, run) for one in events[-EVENTS:]])


def compare(runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The lines of `trackside compare`: runs beside each other, and as many tables below each other as they need."""
    titles = {"configuration that differs:": list(_differing(runs)), "metrics:": list(_metric_rows(runs))}
    rows = [row for part in titles.values() for row in part]
    names = _names(runs)
    keys = max(cells(key) for key, _ in rows) + 2
    natural = max(COLUMN, *(cells(cell) for _, row in rows for cell in row), *map(cells, names))
    fits = max(1, (width() - min(keys, width() // 3)) // (COLUMN + 2))
    beside = min(fits, len(runs))
    keys = min(keys, max(width() // 3, width() - beside * (natural + 2)))
    wide = max(COLUMN, min(natural, (width() - keys) // beside - 2))
    for first in range(0, len(runs), fits):
        part = slice(first, first + fits)
        if first:
            yield ""
        yield from _wrapped("", names[part], keys, wide)
        for title, section in titles.items():
            if section:
                yield title
            for key, row in section:
                yield from _wrapped(f"  {key}", row[part], keys, wide)


def _wrapped(key: str, row: Sequence[str], keys: int, wide: int) -> Iterator[str]:
    """A row, in as many lines as its longest cell needs, up to `LINES`."""
    pieces = [_pieces(cell, wide) for cell in row]
    for line in range(max(map(len, pieces))):
        found = [piece[line] if line < len(piece) else "" for piece in pieces]
        name = cut(key, keys) if not line else ""
        parts = [" " * (wide - cells(text)) + text for text in found]
        yield "  ".join([name + " " * (keys - cells(name)), *parts]).rstrip()


def _pieces(text: str, wide: int) -> list[str]:
    pieces: list[str] = []
    while cells(text) > wide and len(pieces) < LINES - 1:
        piece = head(text, wide)
        pieces.append(piece)
        text = text[len(piece) :]
    return [*pieces, cut(text, wide)]


def differences(runs: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[Any] | None]]:
    """The entries of the configurations that are not the same in all runs; None where a run has none."""
    configs = [config(run) for run in runs]
    keys = dict.fromkeys(key for one in configs for key in one)
    rows = {key: [(one[key],) if key in one else None for one in configs] for key in keys}
    return {key: row for key, row in rows.items() if any(setting(one) != setting(row[0]) for one in row)}


def compared(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What `trackside compare --json` prints; a list has an entry a run."""
    found = [{one["key"]: one for one in metrics(run)} for run in runs]
    keys = dict.fromkeys(key for one in found for key in one)
    return {
        "runs": [{name: run[name] for name in ("id", "name", "state", "started", "ended")} for run in runs],
        "configuration": {
            key: [None if one is None else one[0] for one in row] for key, row in differences(runs).items()
        },
        "metrics": {key: [one.get(key) for one in found] for key in keys},
    }


def _differing(runs: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, list[str]]]:
    for key, row in differences(runs).items():
        yield shown(key), ["-" if one is None else setting(one[0]) for one in row]


def _metric_rows(runs: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, list[str]]]:
    for key, row in compared(runs)["metrics"].items():
        for name in ("final", "best"):
            values = [None if one is None else one[name] for one in row]
            if name == "final" or any(value is not None for value in values):
                yield f"{shown(key)} {name}", list(map(number, values))
    yield "last step", [number(run["step"]) for run in runs]
    yield "duration", [duration(None if run["ended"] is None else run["ended"] - run["started"]) for run in runs]


def _names(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """By name; by id where another has the same name."""
    names = [run["name"] for run in runs]
    return [shown(run["name"] if names.count(run["name"]) == 1 else run["id"]) for run in runs]


def _facts(run: Mapping[str, Any], now: float) -> Iterator[str]:
    last: Mapping[str, Any] = run["attempt_list"][-1] if run["attempt_list"] else {}
    ended = run["ended"]
    state = run["state"] + (f" ({run['cause']})" if run["cause"] else "")
    attempts = len(run["attempt_list"])
    marks = [f"{attempts} attempts" if attempts > 1 else "", "pinned" if run["pinned"] else ""]
    marks.append("older samples trimmed" if run.get("trimmed") else "")
    commit = last.get("git_commit", "") + (" with changes" if last.get("git_dirty") else "")
    software = [last.get("platform"), last.get("python") and f"Python {last['python']}", last.get("framework")]
    facts = {
        "run": f"{run['name']}  {run['id']}" if run["name"] != run["id"] else run["id"],
        "state": ", ".join([state, *filter(None, marks)]),
        "started": moment(run["started"]),
        "ended": moment(ended) if ended is not None else "",
        "duration": duration(took(run, now)),
        "step": f"{run['step']}" + (f" of {last['total_steps']}" if last.get("total_steps") else ""),
        "goodput": _goodput(run),
        "MFU": f"{100 * run['mfu']:.1f} %" if "mfu" in run else "",
        "tags": ", ".join(run["tags"]),
        "command": " ".join(last.get("command") or ()),
        "directory": last.get("directory", ""),
        "git": commit,
        "host": last.get("host", "") + (f", {last['world_size']} ranks" if (last.get("world_size") or 1) > 1 else ""),
        "software": ", ".join(filter(None, software)),
        "hardware": ", ".join(_parts(flat(last.get("hardware") or {}))),
    }
    for name, text in facts.items():
        if text and text != "None":
            yield f"{name:10}{shown(text)}"


def _goodput(run: Mapping[str, Any]) -> str:
    """``91.2 % (data 3.1 %, restart 3.7 %)``: the share of its time that it trained in, and what the rest was lost to."""
    if "goodput" not in run:
        return ""
    lost = sorted(run["lost"].items(), key=lambda one: -one[1])
    causes = ", ".join(f"{cause} {100 * share:.1f} %" for cause, share in lost if share >= LEAST)
    return f"{100 * run['goodput']:.1f} %" + (f" ({causes})" if causes else "")


def _parts(hardware: Mapping[str, Any]) -> Iterator[str]:
    """Each thing that is there, memory in GiB."""
    for key, value in hardware.items():
        if key.endswith("_bytes") and isinstance(value, int | float):
            yield f"{key.removesuffix('_bytes')} {value / 2**30:.3g} GiB"
        elif value not in ([], {}, "", None):
            yield f"{key} {setting(value)}"


def _attempts(run: Mapping[str, Any], now: float) -> Iterator[str]:
    for one in run["attempt_list"]:
        cause = f" ({one['cause']})" if one["cause"] else ""
        yield f"{one['attempt']}  {moment(one['started'])}  {duration(took(one, now))}  {one['state']}{cause}"


def _alert(one: Mapping[str, Any], run: Mapping[str, Any]) -> str:
    firing = "fires" if one["ended"] is None else f"for {duration(one['ended'] - one['started'])}"
    return f"{one['severity']}  {one['alert']}  {_after(one['started'], run)}, {firing}  {one['summary']}"


def _event(one: Mapping[str, Any], run: Mapping[str, Any]) -> str:
    step = "" if one["step"] is None else f"  step {one['step']}"
    fields = " ".join(f"{key}={setting(value)}" for key, value in flat(one["fields"]).items() if value != "")
    rank = "" if one["rank"] is None else f"  rank {one['rank']}"
    return f"{_after(one['time'], run)}{rank}{step}  {one['kind']}  {fields}"


def _after(moment_: float, run: Mapping[str, Any]) -> str:
    return f"after {duration(moment_ - run['started'])}"


def _listed(title: str, lines: Sequence[str] | Iterator[str]) -> Iterator[str]:
    found = list(lines)
    if found:
        yield from ("", f"{title}:", *(f"  {shown(line).rstrip()}" for line in found))


def _pairs(title: str, pairs: Mapping[str, str]) -> Iterator[str]:
    if pairs:
        wide = min(40, max(cells(shown(key)) for key in pairs))
        yield from ("", f"{title}:")
        for key, value in pairs.items():
            name = shown(key)
            yield f"  {name}{' ' * (wide - cells(name))}  {value}"
