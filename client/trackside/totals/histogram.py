"""Count durations in the buckets of a histogram."""

from __future__ import annotations

from bisect import bisect_left
from typing import TypeVar

from trackside.buckets import duration_index
from trackside.wire import DURATION_BUCKETS, Histogram

MOST = 2**63 - 1  # limit of a count: it travels as int64

H = TypeVar("H", bound=Histogram)


def empty(kind: type[H]) -> H:
    """Return a histogram of class *kind* without observations."""
    return kind([0] * (len(DURATION_BUCKETS) + 1), 0.0)


def observe(durations: Histogram, seconds: float, times: int = 1) -> None:
    """Add *times* observations that took *seconds* together."""
    bucket = bisect_left(DURATION_BUCKETS, seconds / times)  # bounds are inclusive, as `le` in Prometheus
    durations.counts[bucket] = min(durations.counts[bucket] + times, MOST)
    durations.sum += seconds
    index = duration_index(seconds / times)
    if index is not None:
        durations.fine[index] = min(durations.fine.get(index, 0) + times, MOST)
