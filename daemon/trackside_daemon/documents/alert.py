"""An alert: its facts, its evidence, and what to read next."""

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isfinite
from typing import Any

from trackside.limits import BATCH_NAMES
from trackside_daemon.alerts.active_alert import ADDITION, CONCLUSION, OCCURRENCES
from trackside_daemon.alerts.evidence.batches import BATCHES, REPEATED, place, summary
from trackside_daemon.captures.hang.places import is_own
from trackside_daemon.captures.hang.verdict import ranks_text
from trackside_daemon.documents.elements import Code, Document, Table, facts, listing
from trackside_daemon.documents.run import fields_of
from trackside_daemon.model.configuration import flat, setting
from trackside_daemon.model.records import STEP
from trackside_daemon.model.text import NONFINITE as NUMBERS
from trackside_daemon.model.text import byte_size, counted, duration, moment, number, percent, with_unit
from trackside_daemon.model.troubles import DETECTED, RULED

Evidence = Callable[[Any, Mapping[str, Any]], Iterator[Table]]

BARS = "▁▂▃▄▅▆▇█"
NONFINITE = "!"  # bar of NaN and infinities
NEWEST = 5  # number of last samples to print as numbers


def document(alert: Mapping[str, Any], now: float) -> Document:
    """Return all about an alert; *now* is in Unix seconds."""
    evidence = alert["evidence"]
    rest = {name: value for name, value in evidence.items() if name not in {*_EVIDENCE, ADDITION, CONCLUSION, STEP}}
    return Document(
        f"{alert['alert']} {alert['severity']}",
        [
            _facts(alert, now),
            listing("", [alert["summary"]]),
            listing("", alert["description"].splitlines()),
            _values("evidence", flat(rest)),
            *(
                table
                for name, tables in _EVIDENCE.items()
                if evidence.get(name)
                for table in _shown(name, tables, evidence[name], alert)
            ),
            _next(alert),
        ],
    )


def _facts(alert: Mapping[str, Any], now: float) -> Table:
    ended = alert["ended"]
    labels = {name: value for name, value in alert["labels"].items() if name != "run"}
    silenced = alert.get("silenced_until")
    return facts(
        "",
        {
            "alert": f"{alert['alert']}  {alert['severity']}  "
            + ("firing" if ended is None else f"resolved {moment(ended)}"),
            "id": str(alert["id"]),
            "run": f"{alert['name']}  {alert['run']}" if alert["run"] else "",
            "about": ", ".join(f"{name} {value}" for name, value in labels.items()),
            "since": f"{moment(alert['started'])}, for {duration((now if ended is None else ended) - alert['started'])}",
            "notified": ", ".join(alert["notified"]) or "no sink",
            "dismissed": _dismissed(alert),
            "silenced": f"until {moment(silenced)}" if silenced else "",
        },
    )


def _dismissed(alert: Mapping[str, Any]) -> str:
    dismissed = alert.get("dismissed")  # older daemons do not send it
    if not dismissed:
        return ""
    comment = f": {dismissed['comment']}" if dismissed.get("comment") else ""
    return f"as a false alarm {moment(dismissed['time'])}{comment}"


def _shown(name: str, tables: Evidence, value: Any, alert: Mapping[str, Any]) -> list[Table]:
    """Return the tables of evidence; that of an unknown shape becomes its fields."""
    try:
        return list(tables(value, alert))
    except (LookupError, TypeError, ValueError, AttributeError):
        return [facts(name, {key: setting(leaf) or "-" for key, leaf in flat({name: value}).items()})]


def _occurrences(occurrences: Sequence[Mapping[str, Any]], _: Mapping[str, Any]) -> Iterator[Table]:
    """Yield each time that the problem came while the alert fired."""
    rows = [[str(one["number"]), moment(one["time"]), one["summary"]] for one in occurrences]
    yield Table("times that it came while the alert fired", ("number", "since", "summary"), rows, ">", "  =")


def batches_document(run: str, batches: Sequence[Mapping[str, Any]]) -> Document:
    """Return all that is known of some batches of a run."""
    parts = []
    for one in batches:
        before = ", before a step with an alert" if "before" in one else ""
        size = f": {counted(one['count'], 'sample')} of {one.get('dataset') or 'its data'}" if "count" in one else ""
        title = f"step {number(one['step'])}, rank {one['rank']}{before}{size}"
        parts.append(listing(title, [summary(one), place(one)] if one.get("samples") else [place(one)]))
    return Document(f"Batches of {run}", parts)


def _batches(batches: Sequence[Mapping[str, Any]], _: Mapping[str, Any]) -> Iterator[Table]:
    """Yield the batches of data at each step at which the loss or the gradients went wrong, and at the step before."""
    rows = [
        [
            f"{number(one['step'])}{', before' * ('before' in one)}",
            *(str(one["rank"]), number(one.get("count")), summary(one, BATCH_NAMES)),
        ]
        for one in batches
    ]
    yield Table("batches of that step and of the one before", ("step", "rank", "samples", "which"), rows, "<>>", "   =")


def _exception(fields: Mapping[str, str], _: Mapping[str, Any]) -> Iterator[Table]:
    """Yield the traceback of an exception, which ends with its text."""
    text = str(fields["traceback"] or f"{fields['type']}: {fields['text']}")
    yield listing("exception, innermost call last", map(Code, text.splitlines()))


def _causes(causes: Sequence[Mapping[str, Any]], _: Mapping[str, Any]) -> Iterator[Table]:
    rows = [(percent(cause.get("explains_ratio")), cause["text"]) for cause in causes]
    title = "likely causes, with the share of the lost time that each can explain at most"
    yield Table(title, ("explains", "cause"), rows, ">", " =")


def _ranks(ranks: Mapping[str, Mapping[str, Any]], _: Mapping[str, Any]) -> Iterator[Table]:
    """Yield a table with a row per value and a column per rank."""
    order = sorted(ranks, key=lambda rank: (len(rank), rank))
    values = {rank: flat(ranks[rank]) for rank in order}
    names = dict.fromkeys(name for rank in order for name in values[rank])
    rows = [[name, *(_value(name, values[rank].get(name)) for rank in order)] for name in names]
    yield Table("last values", ("", *(f"rank {rank}" for rank in order)), rows)


def _samples(samples: Mapping[str, Any], _: Mapping[str, Any]) -> Iterator[Table]:
    points = samples["points"]
    if not points:
        return
    values = [float(value) for _, _, value in points]
    finite = [value for value in values if isfinite(value)]
    steps = f"steps {points[0][0]} to {points[-1][0]}" if len(points) > 1 else f"step {points[0][0]}"
    spread = f"  {number(min(finite))} to {number(max(finite))}" if finite else ""
    newest = "  ".join(f"{step}: {number(value)}" for step, _, value in points[-NEWEST:])
    title = f"{samples['key']} of rank {samples['rank']}, {steps}"
    yield listing(title, [Code(_bars(values, finite) + spread), Code(newest)])


def _bars(values: Sequence[float], finite: Sequence[float]) -> str:
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    size = high - low
    scale = (len(BARS) - 1) / size if isfinite(size) and size > 0 else 0.0
    return "".join(BARS[round((value - low) * scale)] if isfinite(value) else NONFINITE for value in values)


def _stacks(stacks: Sequence[Mapping[str, Any]], _: Mapping[str, Any]) -> Iterator[Table]:
    """Yield the stacks, equal ones together and those in the user's code first, the innermost call last, as in tracebacks."""
    groups: dict[tuple[str, ...], dict[str, list[int]]] = {}
    for rank in stacks:
        for thread in rank["threads"]:
            groups.setdefault(tuple(thread["frames"]), {}).setdefault(thread["name"], []).append(rank["rank"])
    for frames, names in sorted(groups.items(), key=lambda group: not any(map(is_own, group[0]))):
        title = "; ".join(f"{ranks_text(ranks)}, {name}" for name, ranks in names.items())
        yield listing(f"{title}, innermost call last", map(Code, frames))


def _gpus(gpus: Mapping[str, Mapping[str, Any]], _: Mapping[str, Any]) -> Iterator[Table]:
    for gpu, about in gpus.items():
        lists = {name.replace("_", " "): ", ".join(about[name]) for name in _LISTS if about.get(name)}
        yield _values(f"GPU {gpu}", {**lists, **about["readings"]})
        if about.get("processes"):
            yield _rows(f"processes on GPU {gpu}", about["processes"])


def _cgroups(cgroups: Mapping[str, Mapping[str, Any]], _: Mapping[str, Any]) -> Iterator[Table]:
    return (_values(f"cgroup {path}", values) for path, values in cgroups.items())


def _events(events: Sequence[Mapping[str, Any]], alert: Mapping[str, Any]) -> Iterator[Table]:
    rows = [(_before(event["time"], alert), number(event["rank"]), event["kind"], fields_of(event)) for event in events]
    yield Table("events before", ("when", "rank", "event", "fields"), rows, "<>", "   =")


def _xids(xids: Sequence[Mapping[str, Any]], alert: Mapping[str, Any]) -> Iterator[Table]:
    rows = [(_before(xid["time"], alert), str(xid["gpu"]), str(xid["xid"])) for xid in xids]
    yield Table("Xid errors", ("when", "GPU", "Xid"), rows)


def _listed(title: str, kind: type[str] = str) -> Evidence:
    return lambda lines, _: iter([listing(title, map(kind, lines))])


def _tabled(title: str) -> Evidence:
    return lambda items, _: iter([_rows(title, items)])


def _next(alert: Mapping[str, Any]) -> Table:
    """Return the next command and the page of the alert."""
    labels = alert["labels"]
    rank = f" --rank {labels['rank']}" if labels.get("rank", "").isdecimal() else ""
    command = f"trackside show {alert['run']}{rank}" if alert["run"] else "trackside doctor" if "gpu" in labels else ""
    if BATCHES in alert["evidence"] and STEP in alert["evidence"]:
        command = f"trackside batch {alert['run']} --step {alert['evidence'][STEP]}"
    builtin = alert["alert"] in DETECTED | RULED
    return facts(
        "",
        {
            "next": Code(command),
            "read": f"docs/alerts.md#{alert['alert'].lower()}" if builtin else "",
            "rule": "" if builtin else "see alerts.rules in the configuration",
        },
    )


_UNIT = re.compile("_(bytes|seconds|ratio|hertz)(_per_second)?$")
_LISTS = ("clocks_kept_down_by", "ranks")
# By key of the evidence, in the order of the document.
_EVIDENCE: dict[str, Evidence] = {
    OCCURRENCES: _occurrences,
    BATCHES: _batches,
    REPEATED: _tabled("samples that were there at several such steps"),
    "exception": _exception,
    "causes": _causes,
    "checkpoint": lambda checkpoint, _: iter([_values("last good checkpoint before", checkpoint)]),
    "changed": _listed("changed about then"),
    "phases": _tabled("share of the time in each phase"),
    "neighbours": _tabled("heaviest processes outside of the training"),
    "ranks": _ranks,
    "samples": _samples,
    # The first line of the description has the verdict.
    "hang": lambda hang, _: iter(
        [facts("where the ranks are", {f"rank {rank}": place for rank, place in hang["places"].items()})]
    ),
    "diagnosis": _listed("where the time of the run went until then"),
    "stacks": _stacks,
    "events": _events,
    "xids": _xids,
    "processes": _tabled("processes"),
    "host": lambda host, _: iter([_values("host", host)]),
    "cgroups": _cgroups,
    "gpus": _gpus,
    "console": _listed("last lines that the command printed", Code),
    "missing": _listed("unknown"),
}


def _rows(title: str, items: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of objects with the same keys."""
    names = list(dict.fromkeys(name for item in items for name in item))
    rows = [[_value(name, item.get(name)) for name in names] for item in items]
    header = [_UNIT.sub("", name).replace("_", " ") for name in names]
    plain = [all(isinstance(item.get(name, ""), str) for item in items) for name in names]
    right, flexible = ("".join(mark if text else other for text in plain) for mark, other in ("<>", "~ "))
    return Table(title, header, rows, right, flexible)


def _values(title: str, pairs: Mapping[str, Any]) -> Table:
    return facts(title, {name: _value(name, value) or "-" for name, value in pairs.items()})


def _value(name: str, value: Any) -> str:
    """Return a value in the unit that its name ends in."""
    if value is None or value in NUMBERS:
        return number(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value if isinstance(value, str) else setting(value)
    base = name.partition(" ")[0]
    if name in _MOMENTS or base.endswith("_seconds") or base.startswith("phase_seconds."):
        return time.strftime("%H:%M:%S", time.localtime(value)) if name in _MOMENTS else duration(value)
    if base.endswith(("_bytes", "_bytes_per_second")) or base == "bytes":
        return byte_size(value) + ("/s" if base.endswith("_second") else "")
    if base.endswith("_hertz"):
        return with_unit(value, "Hz")
    return percent(value) if base.endswith("_ratio") else number(value)


_MOMENTS = frozenset(("last_push", "since", "recovered", "accepted"))


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
