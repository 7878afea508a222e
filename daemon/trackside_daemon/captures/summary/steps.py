"""Cut a trace to whole steps, from the marks of its optimizer or of its profiler, and mark them for viewers."""

import gzip
import os
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from trackside.limits import PROFILE_STEPS
from trackside_daemon.captures.summary.trace import Trace, TraceError, TraceEvent


class Steps(NamedTuple):
    """Whole steps."""

    edges: list[float]  # begin of each step and end of the last, in the trace's microseconds
    pid: int | str  # the process that marks them
    tid: int | str  # the thread that marks them, which trains
    whole: bool = True  # False if the trace has no marks, and counts as one step


def cut(trace: Trace, count: int | None, near: float | None = None) -> Steps:
    """Return the steps to summarise.

    Args:
        trace: The trace of a rank.
        count: Number of steps; None for all whole ones.
        near: Begin of the first step of another rank, as Unix time in microseconds: the steps begin with the nearest one.

    Raises:
        TraceError: The trace has no event of a training thread.
    """
    marks = [
        event for event in trace.events if event.cat == "user_annotation" and event.name.startswith("ProfilerStep#")
    ]
    if marks:
        thread, edges = _thread(marks), [event.ts for event in _outermost(marks)]
        edges.append(_outermost(marks)[-1].end)
    else:
        marks = [
            event
            for event in trace.events
            if event.cat == "user_annotation" and event.name.startswith("Optimizer.step#")
        ]
        if not marks:
            return _unmarked(trace)
        thread, edges = _thread(marks), [event.end for event in _outermost(marks)]
        # With as many marks as steps, the recording began where an optimizer step ended.
        if len(edges) == (count or 0) or len(edges) == 1:
            edges.insert(0, min(trace.events, key=_begin).ts)
    return Steps(_middle(edges, count or PROFILE_STEPS, None if near is None else near - trace.base / 1000), *thread)


def durations(edges: Sequence[float]) -> list[float]:
    """Return the seconds of each step."""
    return [(end - begin) / 1e6 for begin, end in pairwise(edges)]


def _begin(event: TraceEvent) -> float:
    return event.ts


def _thread(marks: list[TraceEvent]) -> tuple[int | str, int | str]:
    return marks[0].pid, marks[0].tid


def _outermost(marks: list[TraceEvent]) -> list[TraceEvent]:
    """Return the marks of the first mark's thread without those inside another: one optimizer may call another's step."""
    outermost: list[TraceEvent] = []
    for event in sorted(marks, key=_begin):
        if (event.pid, event.tid) == _thread(marks) and (not outermost or event.ts >= outermost[-1].end):
            outermost.append(event)
    return outermost


def _middle(edges: list[float], count: int, near: float | None) -> list[float]:
    """Return *count* steps: those from *near* on, or those in the middle, which other ranks are most likely to have too."""
    spare = max(0, len(edges) - 1 - count)
    first = spare // 2
    if near is not None:
        after = bisect_left(edges, near)
        first = min(spare, min((after - 1, after), key=lambda index: abs(_edge(edges, index) - near)))
    return edges[max(0, first) : max(0, first) + count + 1]


def _edge(edges: list[float], index: int) -> float:
    return edges[index] if 0 <= index < len(edges) else float("inf")


def _unmarked(trace: Trace) -> Steps:
    operators = [event for event in trace.events if event.cat == "cpu_op"]
    if not operators:
        raise TraceError(
            "the trace has no operators: nothing ran in PyTorch while it was recorded, as long as a training starts; "
            "try again once it makes steps"
        )
    threads: dict[tuple[int | str, int | str], int] = {}
    for event in operators:
        threads[event.pid, event.tid] = threads.get((event.pid, event.tid), 0) + 1
    edges = [min(event.ts for event in operators), max(event.end for event in operators)]
    return Steps(edges, *max(threads, key=lambda thread: threads[thread]), whole=False)


class _Event(msgspec.Struct, gc=False):
    """The place of an event in time."""

    ph: str = ""
    ts: float = 0.0
    dur: float = 0.0


_decode = msgspec.json.Decoder(_Event).decode


def marked(text: bytes, steps: Steps, distributed: dict[str, Any]) -> bytes:
    """Return a trace of its steps alone, with ``distributedInfo`` and ``ProfilerStep#`` marks, which it keeps if it has them.

    Args:
        text: The trace, which `trace.decode` accepts.
        steps: Its steps.
        distributed: ``rank``, ``world_size`` and ``backend``.
    """
    fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    events = msgspec.json.decode(fields.pop("traceEvents"), type=list[msgspec.Raw])
    if steps.whole:
        events = [event for event in events if _overlaps(event, steps.edges)]
    # HTA searches for the rank with a space before the number.
    own = ", ".join(f'"{key}": {msgspec.json.encode(value).decode()}' for key, value in distributed.items())
    head = {"distributedInfo": msgspec.Raw(f"{{{own}}}".encode())} | fields
    marks = [] if b'"ProfilerStep#' in text or not steps.whole else _marks(steps)
    return msgspec.json.encode(head | {"traceEvents": [*marks, *events]})


def write(path: Path, text: bytes) -> None:
    """Write a gzip that only its owner can read, complete or not at all.

    Raises:
        OSError: It cannot be written.
    """
    part = path.with_name(path.name + ".part")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(gzip.compress(text, compresslevel=4, mtime=0))
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _overlaps(event: msgspec.Raw, edges: list[float]) -> bool:
    """Return whether an event happens during the steps, or at no time."""
    found = _decode(event)
    return found.ph == "M" or (found.ts < edges[-1] and found.ts + found.dur > edges[0])


def _marks(steps: Steps) -> Iterator[dict[str, Any]]:
    mark = {"ph": "X", "cat": "user_annotation", "pid": steps.pid, "tid": steps.tid}
    for index, (begin, end) in enumerate(pairwise(steps.edges)):
        yield mark | {"name": f"ProfilerStep#{index}", "ts": begin, "dur": end - begin, "args": {}}
