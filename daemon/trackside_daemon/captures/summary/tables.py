"""Tables of a profile: operators by their own time on CPU and GPU, and the user's functions by their nested calls."""

import json
import re
import statistics
import sys
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from trackside_daemon.captures.summary.trace import TraceEvent

LOADER = "enumerate(DataLoader)"  # begin of the mark in which a loop waits for its next batch

ROUNDING = 1.0  # microseconds by which a call may end after the one that holds it

_FUNCTION = re.compile(r"(.+)\((\d+)\): (.*)", re.DOTALL)
_LIBRARIES = {"torch", "torchvision", "lib", "site-packages", "threading"} | sys.stdlib_module_names


class ThreadCall(msgspec.Struct, gc=False):
    """An event of a thread, and its place among the others."""

    event: TraceEvent
    own: float  # microseconds in which no call inside it ran
    # The user's innermost function that encloses it, or is it, as ``path/file.py:88 in name``; empty if not recorded.
    source: str
    in_loader: bool  # it waits for the next batch, or a call that does encloses it
    in_operator: bool  # an operator encloses it


def nest(events: Iterable[TraceEvent]) -> list[ThreadCall]:
    """Return the calls of one thread, by their begin."""
    calls: list[ThreadCall] = []
    enclosing: list[ThreadCall] = []
    for event in sorted(events, key=lambda event: (event.ts, -event.dur)):
        while enclosing and not encloses(enclosing[-1].event, event):
            enclosing.pop()
        call = _call(event, enclosing[-1] if enclosing else None)
        calls.append(call)
        enclosing.append(call)
    return calls


def encloses(outer: TraceEvent, event: TraceEvent) -> bool:
    """Return whether a call holds another. A function that begins a mark ends before it, and does not hold it."""
    return event.ts < outer.end and event.end <= outer.end + ROUNDING


def _call(event: TraceEvent, parent: ThreadCall | None) -> ThreadCall:
    in_loader = event.name.startswith(LOADER)
    source = user_source(event.name) if event.cat == "python_function" else ""
    if parent is None:
        return ThreadCall(event, event.dur, source, in_loader, in_operator=False)
    parent.own = max(0.0, parent.own - min(event.dur, parent.event.end - event.ts))
    in_operator = parent.in_operator or parent.event.cat == "cpu_op"
    return ThreadCall(event, event.dur, source or parent.source, in_loader or parent.in_loader, in_operator)


@lru_cache(4096)
def user_source(name: str) -> str:
    """Return ``path/file.py:88 in name`` of a function named ``path/file.py(88): name``; empty for PyTorch and standard library."""
    found = _FUNCTION.match(name)
    if found is None or name.startswith("<frozen "):
        return ""
    parts = found[1].split("/")
    if parts[0].removesuffix(".py") in _LIBRARIES or "site-packages" in parts:
        return ""
    return f"{found[1]}:{found[2]} in {found[3]}"


ROWS = 40  # rows of a table; the largest are kept
TEXT = 120  # characters of a name, of shapes and of a source

ADDRESS = " object at 0x"


class SecondsTable:
    """Seconds by name and step.

    Args:
        edges: Begin of each step and end of the last, in microseconds.
    """

    def __init__(self, edges: Sequence[float]) -> None:
        self._edges = edges
        self._seconds: dict[tuple[str, str], list[float]] = {}
        self._counts: defaultdict[str, int] = defaultdict(int)
        self._details: defaultdict[tuple[str, str], dict[str | bytes, float]] = defaultdict(dict)

    def add(
        self, name: str, column: str, begin: float, microseconds: float, details: Mapping[str, str | bytes]
    ) -> None:
        """Count a call, if a step holds its begin. The details with the most time are kept."""
        step = bisect_right(self._edges, begin) - 1
        steps = len(self._edges) - 1
        if not 0 <= step < steps:
            return
        self._seconds.setdefault((name, column), [0.0] * steps)[step] += microseconds / 1e6
        self._counts[name] += column != "gpu"
        for key, detail in details.items():
            if detail:
                known = self._details[name, key]
                known[detail] = known.get(detail, 0.0) + microseconds

    def rows(self, columns: Sequence[str], details: Sequence[str]) -> list[dict[str, Any]]:
        """Return the largest rows: means per step, and the 10th, 50th and 90th percentile of the steps."""
        steps = len(self._edges) - 1
        whole = (self._edges[-1] - self._edges[0]) / 1e6 / steps or 1.0
        rows: list[dict[str, Any]] = []
        for name in {name for name, _ in self._seconds}:
            values = [self._seconds.get((name, column), [0.0] * steps) for column in columns]
            sums = [sum(step) for step in zip(*values, strict=True)]
            low, middle, high = percentiles(sums)
            means = {column: sum(value) / steps for column, value in zip(columns, values, strict=True)}
            row = {"name": name[:TEXT], "count": self._counts[name] / steps, **means}
            row |= {"share": max(means.values()) / whole, "low": low, "median": middle, "high": high}
            rows.append(row | {key: self._detail(name, key) for key in details})
        return sorted(rows, key=lambda row: (-row["share"], row["name"]))[:ROWS]

    def _detail(self, name: str, key: str) -> str:
        details = self._details.get((name, key))
        if not details:
            return ""
        most = max(details, key=lambda detail: details[detail])
        return (most if isinstance(most, str) else _shapes(most))[:TEXT]


def percentiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the 10th, 50th and 90th percentile; of fewer than four values, the least, the median and the greatest."""
    middle = statistics.median(values)
    if len(values) < 4:
        return min(values), middle, max(values)
    deciles = statistics.quantiles(values, n=10, method="inclusive")
    return deciles[0], middle, deciles[-1]


def operators(
    calls: Iterable[ThreadCall], kernels: Iterable[TraceEvent], edges: Sequence[float]
) -> list[dict[str, Any]]:
    """Return the rows of operators; the work of a GPU belongs to the operator that started it, if one is recorded."""
    table = SecondsTable(edges)
    names: dict[int, ThreadCall] = {}
    for call in calls:
        if call.event.cat == "cpu_op":
            details: dict[str, str | bytes] = {"shapes": bytes(call.event.args.shapes), "source": call.source}
            table.add(call.event.name, "cpu", call.event.ts, call.own, details)
            if call.event.args.id is not None:
                names[call.event.args.id] = call
    for kernel in kernels:
        origin = names.get(kernel.args.id) if kernel.args.id is not None else None
        name, source = (kernel.name, "") if origin is None else (origin.event.name, origin.source)
        table.add(name, "gpu", kernel.ts, kernel.dur, {"source": source})
    return table.rows(("cpu", "gpu"), ("shapes", "source"))


def functions(calls: Iterable[ThreadCall], edges: Sequence[float]) -> list[dict[str, Any]]:
    """Return the rows of the user's functions, with the time of libraries that they call, but not of operators.

    The name of a row is the function's source; ``inner`` is the call of a library with most of its time.
    """
    table = SecondsTable(edges)
    for call in calls:
        if call.event.cat == "python_function" and call.source:
            inner = "" if user_source(call.event.name) else call.event.name.split(ADDRESS)[0]
            table.add(
                call.source, "seconds", call.event.ts, call.own, {"inner": inner, "loader": "yes" * call.in_loader}
            )
    return [row | {"source": row["name"]} for row in table.rows(("seconds",), ("inner", "loader"))]


def communication(events: Iterable[TraceEvent], edges: Sequence[float]) -> list[dict[str, Any]]:
    """Return the rows of collectives, with their whole durations, also while other work ran."""
    table = SecondsTable(edges)
    for event in events:
        table.add(event.name, "seconds", event.ts, event.dur, {})
    return table.rows(("seconds",), ("source",))


def _shapes(text: bytes) -> str:
    """Return the shapes of inputs, without those that are no tensors."""
    shapes = json.loads(text)
    tensors = [shape for shape in shapes if shape != []] if isinstance(shapes, list) else []
    return " ".join(json.dumps(shape, separators=(",", ":")) for shape in tensors)
