"""Divide each step among what it waits for or does; the parts of a step sum to its duration."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

PARTS = ("compute", "overlapped", "exposed", "copies", "data", "idle", "other")
"""Compute alone, communication during compute and alone, copies, waiting for a batch, no work, and the profiler itself."""

KINDS = ("work", "copy", "communication", "loader", "profiler", "sync")
_WORK, _COPY, _COMMUNICATION, _LOADER, _PROFILER, _SYNC = (1 << index for index in range(len(KINDS)))

Span = tuple[float, float]


def divide(spans: Mapping[str, Sequence[Span]], edges: Sequence[float], *, gpu: bool) -> list[dict[str, float]]:
    """Return the seconds of each part of each step.

    Args:
        spans: By kind, begins and ends in microseconds; they may overlap.
        edges: Begin of each step and end of the last.
        gpu: Work, copies and communication ran on a GPU, and waiting for a batch counts only while it is idle.

    Returns:
        For each step its ``seconds``, the `PARTS`, and ``after_sync``: the seconds of ``idle`` which begin where a GPU
        ran out of work while the host waited for it.
    """
    steps = [dict.fromkeys(("seconds", *PARTS, "after_sync"), 0.0) for _ in pairwise(edges)]
    names = [_part(mask, gpu=gpu) for mask in range(1 << len(KINDS))]
    running, mask, step, now = [0] * len(KINDS), 0, 0, edges[0]
    after_sync = False
    for time, index, change in _changes(spans, edges):
        seconds = (time - now) / 1e6
        if seconds > 0:
            steps[step]["seconds"] += seconds
            steps[step][names[mask]] += seconds
            if after_sync and names[mask] == "idle":
                steps[step]["after_sync"] += seconds
        now = time
        if index < 0:
            step += 1
            continue
        running[index] += change
        was, mask = mask, mask | 1 << index if running[index] else mask & ~(1 << index)
        if was & (_WORK | _COPY | _COMMUNICATION):
            after_sync = bool(mask & _SYNC)
    return steps


def without(spans: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """Return the times of spans in which none of the others is, in order."""
    changes = [
        (time, which, change)
        for which, some in enumerate((spans, others))
        for begin, end in some
        for time, change in ((begin, 1), (end, -1))
    ]
    running, begun, found = [0, 0], 0.0, []
    for time, which, change in sorted(changes):
        if running[0] and not running[1] and time > begun:
            found.append((begun, time))
        running[which] += change
        begun = time
    return found


def _changes(spans: Mapping[str, Sequence[Span]], edges: Sequence[float]) -> list[tuple[float, int, int]]:
    """Return when a span of a kind begins (1) or ends (-1), by time; kind -1 is the end of a step."""
    changes = [(edge, -1, 0) for edge in edges[1:]]
    first, last = edges[0], edges[-1]
    for index, kind in enumerate(KINDS):
        for begin, end in spans.get(kind, ()):
            if begin < last and end > first:
                changes += ((max(begin, first), index, 1), (min(end, last), index, -1))
    # The end of the trace comes after the ends of spans there, which leave nothing to count.
    return [change for change in sorted(changes) if change[0] < last or change[1] < 0]


def _part(mask: int, *, gpu: bool) -> str:
    """Return the part to which time counts while the kinds of a mask are active."""
    both = mask & _COMMUNICATION and mask & (_WORK if gpu else _WORK | _COPY)
    device = (
        (both, "overlapped"),
        (mask & _COPY and not (gpu and mask & (_WORK | _COMMUNICATION)), "copies"),
        (mask & _WORK, "compute"),
        (mask & _COMMUNICATION, "exposed"),
    )
    host = ((mask & _LOADER, "data"), (mask & _PROFILER, "other"))
    return next((name for active, name in (device + host if gpu else host + device) if active), "idle")
