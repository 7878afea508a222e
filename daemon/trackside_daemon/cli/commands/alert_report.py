"""Output of `trackside alerts show`: the alert, its evidence in blocks, and what to read next."""

from __future__ import annotations

import time
from math import isfinite
from typing import TYPE_CHECKING, Any

from trackside_daemon.alerts.active_alert import CONCLUSION, OCCURRENCES
from trackside_daemon.cli.output import moment, table, width, wrapped
from trackside_daemon.diagnosis.report.configuration import setting
from trackside_daemon.model.configuration import flat
from trackside_daemon.model.text import byte_size, cut, duration, number, percent, shown, with_unit
from trackside_daemon.model.troubles import DETECTED, RULED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Block = Callable[[Any, "Mapping[str, Any]"], Iterator[str]]

BARS = "▁▂▃▄▅▆▇█"
NONFINITE = "!"  # bar of NaN and infinities
RANKS = 5  # maximum number of ranks in a table
NEWEST = 5  # number of last samples to print as numbers


def describe(alert: Mapping[str, Any], now: float) -> Iterator[str]:
    """Yield the lines of `trackside alerts show`; *now* is in Unix seconds."""
    yield from _facts(alert, now)
    yield ""
    yield from wrapped(shown(alert["summary"]), "")
    if alert["description"]:
        yield ""
        for line in alert["description"].splitlines():
            yield from wrapped(shown(line), "")
    evidence = alert["evidence"]
    rest = {name: value for name, value in evidence.items() if name not in {*_BLOCKS, CONCLUSION}}
    if rest:
        yield ""
        yield from _pairs({name: _value(name, value) for name, value in flat(rest).items()})
    for name, block in _BLOCKS.items():
        if evidence.get(name):
            yield from _block(name, block, evidence[name], alert)
    yield from _next(alert)


def _facts(alert: Mapping[str, Any], now: float) -> Iterator[str]:
    ended = alert["ended"]
    state = "firing" if ended is None else f"resolved {moment(ended)}"
    yield shown(f"{alert['alert']}  {alert['severity']}  {state}")
    labels = {name: value for name, value in alert["labels"].items() if name != "run"}
    silenced = alert.get("silenced_until")
    facts = {
        "id": str(alert["id"]),
        "run": f"{alert['name']}  {alert['run']}" if alert["run"] else "",
        "about": ", ".join(f"{name} {value}" for name, value in labels.items()),
        "since": moment(alert["started"]) + f", for {duration((now if ended is None else ended) - alert['started'])}",
        "notified": ", ".join(alert["notified"]) or "no sink",
        "dismissed": _dismissed(alert),
        "silenced": f"until {moment(silenced)}" if silenced else "",
    }
    for name, text in facts.items():
        if text:
            yield f"{name:10}{shown(text)}"


def _dismissed(alert: Mapping[str, Any]) -> str:
    dismissed = alert.get("dismissed")  # older daemons do not send it
    if not dismissed:
        return ""
    comment = f": {dismissed['comment']}" if dismissed.get("comment") else ""
    return f"as a false alarm {moment(dismissed['time'])}{comment}"


def _block(name: str, block: Block, value: Any, alert: Mapping[str, Any]) -> Iterator[str]:
    """Yield an empty line and a block; evidence of an unknown shape becomes a list of its fields."""
    yield ""
    try:
        lines = list(block(value, alert))
    except (LookupError, TypeError, ValueError, AttributeError):
        lines = [f"{name}:", *_pairs({key: setting(leaf) for key, leaf in flat({name: value}).items()})]
    yield from lines


def _occurrences(occurrences: Sequence[Mapping[str, Any]], _: Mapping[str, Any]) -> Iterator[str]:
    """Yield each time that the problem came while the alert fired."""
    yield "times that it came while the alert fired:"
    rows = [[f"  {one['number']}", moment(one["time"]), shown(one["summary"])] for one in occurrences]
    yield from table(["  NUMBER", "SINCE", "SUMMARY"], rows, right="><<", flexible="  ~")


def _ranks(ranks: Mapping[str, Mapping[str, Any]], _: Mapping[str, Any]) -> Iterator[str]:
    """Yield a table with a row per value and a column per rank."""
    order = sorted(ranks, key=lambda rank: (len(rank), rank))
    values = {rank: flat(ranks[rank]) for rank in order}
    names = dict.fromkeys(name for rank in order for name in values[rank])
    yield "last values:"
    for first in range(0, len(order), RANKS):
        columns = order[first : first + RANKS]
        rows = [[f"  {shown(name)}", *(_value(name, values[rank].get(name)) for rank in columns)] for name in names]
        yield from table(
            ["", *(f"RANK {shown(rank)}" for rank in columns)], rows, right="<" + ">" * RANKS, flexible="~"
        )


def _samples(samples: Mapping[str, Any], _: Mapping[str, Any]) -> Iterator[str]:
    points = samples["points"]
    if not points:
        return
    values = [float(value) for _, _, value in points]
    finite = [value for value in values if isfinite(value)]
    steps = f"steps {points[0][0]} to {points[-1][0]}" if len(points) > 1 else f"step {points[0][0]}"
    yield f"{shown(samples['key'])} of rank {samples['rank']}, {steps}:"
    spread = f"  {number(min(finite))} to {number(max(finite))}" if finite else ""
    yield f"  {_bars(values, finite)}{spread}"
    yield "  " + "  ".join(f"{step}: {number(value)}" for step, _, value in points[-NEWEST:])


def _bars(values: Sequence[float], finite: Sequence[float]) -> str:
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    size = high - low
    scale = (len(BARS) - 1) / size if isfinite(size) and size > 0 else 0.0
    return "".join(BARS[round((value - low) * scale)] if isfinite(value) else NONFINITE for value in values)


def _stacks(stacks: Sequence[Mapping[str, Any]], _: Mapping[str, Any]) -> Iterator[str]:
    """Yield the stacks, the innermost call last, as in Python tracebacks."""
    for place, rank in enumerate(stacks):
        for thread in rank["threads"]:
            if place or thread is not rank["threads"][0]:
                yield ""
            yield f"rank {rank['rank']}, {shown(thread['name'])}, innermost call last:"
            for frame in thread["frames"]:
                yield from wrapped(shown(frame), "      ", "  ")


def _hang(hang: Mapping[str, Any], _: Mapping[str, Any]) -> Iterator[str]:
    """Yield where the ranks of a run are that hangs; the first line of the description has the verdict."""
    yield "where the ranks are:"
    yield from _pairs({f"rank {rank}": place for rank, place in hang["places"].items()})


def _diagnosis(lines: Sequence[str], _: Mapping[str, Any]) -> Iterator[str]:
    yield "where the time of the run went until then:"
    for line in lines:
        yield from wrapped(shown(line.strip()), "    ", "    " if line.startswith(" ") else "  ")


def _processes(processes: Sequence[Mapping[str, Any]], _: Mapping[str, Any]) -> Iterator[str]:
    yield "processes:"
    yield from _rows(processes)


def _gpus(gpus: Mapping[str, Mapping[str, Any]], _: Mapping[str, Any]) -> Iterator[str]:
    for place, (gpu, facts) in enumerate(gpus.items()):
        if place:
            yield ""
        yield f"GPU {shown(gpu)}:"
        pairs = {name.replace("_", " "): ", ".join(facts[name]) for name in _LISTS if facts.get(name)}
        yield from _pairs({**pairs, **{name: _value(name, value) for name, value in facts["readings"].items()}})
        if facts.get("processes"):
            yield from _rows(facts["processes"])


def _host(host: Mapping[str, Any], _: Mapping[str, Any]) -> Iterator[str]:
    yield "host:"
    yield from _pairs({name: _value(name, value) for name, value in host.items()})


def _cgroups(cgroups: Mapping[str, Mapping[str, Any]], _: Mapping[str, Any]) -> Iterator[str]:
    for place, (path, values) in enumerate(cgroups.items()):
        if place:
            yield ""
        yield cut(f"cgroup {shown(path)}:", width())
        yield from _pairs({name: _value(name, value) for name, value in values.items()})


def _events(events: Sequence[Mapping[str, Any]], alert: Mapping[str, Any]) -> Iterator[str]:
    yield "events before:"
    for event in events:
        fields = " ".join(f"{key}={setting(value)}" for key, value in flat(event["fields"]).items() if value != "")
        rank = "" if event["rank"] is None else f"rank {event['rank']}"
        line = "  ".join(filter(None, (_before(event["time"], alert), rank, event["kind"], fields)))
        yield from wrapped(shown(line), "    ", "  ")


def _xids(xids: Sequence[Mapping[str, Any]], alert: Mapping[str, Any]) -> Iterator[str]:
    yield "Xid errors:"
    for xid in xids:
        yield shown(f"  {_before(xid['time'], alert)}  GPU {xid['gpu']}  Xid {xid['xid']}")


def _stderr(lines: Sequence[str], _: Mapping[str, Any]) -> Iterator[str]:
    yield "last lines of standard error:"
    for line in lines:
        yield from wrapped(shown(line), "    ", "  ")


def _missing(lines: Sequence[str], _: Mapping[str, Any]) -> Iterator[str]:
    yield "unknown:"
    for line in lines:
        yield from wrapped(shown(line), "    ", "  ")


def _next(alert: Mapping[str, Any]) -> Iterator[str]:
    """Yield the next command and the page of the alert."""
    labels = alert["labels"]
    rank = f" --rank {labels['rank']}" if labels.get("rank", "").isdecimal() else ""
    yield ""
    if alert["run"]:
        yield f"next      trackside show {shown(alert['run'])}{rank}"
    elif "gpu" in labels:
        yield "next      trackside doctor"
    builtin = alert["alert"] in DETECTED | RULED
    yield (
        f"read      docs/alerts.md#{alert['alert'].lower()}"
        if builtin
        else "rule      see alerts.rules in the configuration"
    )


def _causes(causes: Sequence[Mapping[str, Any]], _: Mapping[str, Any]) -> Iterator[str]:
    yield "likely causes, with the share of the lost time that each can explain at most:"
    for cause in causes:
        share = cause.get("explains_ratio")
        yield from wrapped(shown(cause["text"]), " " * 8, f"  {'' if share is None else percent(share):>7}  ")


def _checkpoint(checkpoint: Mapping[str, Any], _: Mapping[str, Any]) -> Iterator[str]:
    yield "last good checkpoint before:"
    yield from _pairs({name: _value(name, value) for name, value in checkpoint.items()})


def _changed(lines: Sequence[str], _: Mapping[str, Any]) -> Iterator[str]:
    yield "changed before:"
    for line in lines:
        yield from wrapped(shown(line), "    ", "  ")


def _phases(phases: Sequence[Mapping[str, Any]], _: Mapping[str, Any]) -> Iterator[str]:
    yield "share of the time in each phase:"
    yield from _rows(phases)


def _neighbours(processes: Sequence[Mapping[str, Any]], _: Mapping[str, Any]) -> Iterator[str]:
    yield "heaviest processes outside of the training:"
    yield from _rows(processes)


def _exception(fields: Mapping[str, str], _: Mapping[str, Any]) -> Iterator[str]:
    """Yield the traceback of an exception, which ends with its text."""
    yield "exception, innermost call last:"
    for line in str(fields["traceback"] or f"{fields['type']}: {fields['text']}").splitlines():
        yield from wrapped(shown(line), "      ", "  ")


_LISTS = ("clocks_kept_down_by", "ranks")
# By key of the evidence, in the order of the output.
_BLOCKS: dict[str, Block] = {
    OCCURRENCES: _occurrences,
    "exception": _exception,
    "causes": _causes,
    "checkpoint": _checkpoint,
    "changed": _changed,
    "phases": _phases,
    "neighbours": _neighbours,
    "ranks": _ranks,
    "samples": _samples,
    "hang": _hang,
    "diagnosis": _diagnosis,
    "stacks": _stacks,
    "events": _events,
    "xids": _xids,
    "processes": _processes,
    "host": _host,
    "cgroups": _cgroups,
    "gpus": _gpus,
    "stderr": _stderr,
    "missing": _missing,
}


def _rows(items: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a table of objects with the same keys."""
    names = list(dict.fromkeys(name for item in items for name in item))
    rows = [
        [f"  {_value(names[0], item.get(names[0]))}", *(_value(name, item.get(name)) for name in names[1:])]
        for item in items
    ]
    header = [_TITLES.get(name, name.upper()) for name in names]
    texts = [all(isinstance(item.get(name, ""), str) for item in items) for name in names]
    header[0] = f"  {header[0]}"
    aligned = "".join("<" if text else ">" for text in texts)
    yield from table(header, rows, right=aligned, flexible="".join("~" if text else " " for text in texts))


_TITLES = {
    "resident_bytes": "MEMORY",
    "memory_bytes": "MEMORY",
    "cpu_seconds": "CPU TIME",
    "read_bytes_per_second": "READS",
    "written_bytes_per_second": "WRITES",
    "io_bytes_per_second": "STORAGE",
    "age_seconds": "AGE",
    "usual_ratio": "USUAL",
    "now_ratio": "NOW",
}


def _pairs(pairs: Mapping[str, str]) -> Iterator[str]:
    column = min(40, max(map(len, pairs), default=0))
    for name, value in pairs.items():
        yield from wrapped(shown(value) or "-", " " * (column + 4), f"  {shown(name):{column}}  ")


def _value(name: str, value: Any) -> str:
    """Return a value in the unit that its name ends in."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "-" if value is None else shown(value if isinstance(value, str) else setting(value))
    if name in _MOMENTS:
        return time.strftime("%H:%M:%S", time.localtime(value))
    base = name.partition(" ")[0]
    if base.endswith("_seconds") or base.startswith("phase_seconds."):
        return duration(value)
    if base.endswith(("_bytes", "_bytes_per_second")) or base == "bytes":
        return byte_size(value) + ("/s" if base.endswith("_second") else "")
    if base.endswith("_ratio"):
        return percent(value)
    return with_unit(value, "Hz") if base.endswith("_hertz") else number(value)


_MOMENTS = frozenset(("last_push", "since"))


def _before(at: float, alert: Mapping[str, Any]) -> str:
    """Return a moment relative to the beginning of the alert."""
    seconds = alert["started"] - at
    return (
        f"{duration(seconds)} before"
        if seconds > 0.05
        else f"{duration(-seconds)} after"
        if seconds < -0.05
        else "then"
    )
