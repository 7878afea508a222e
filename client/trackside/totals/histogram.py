"""Durations, counted by the buckets of a histogram."""

from __future__ import annotations

from bisect import bisect_left
from typing import TypeVar

from trackside.wire import DURATION_BUCKETS, Histogram

MOST = 2**63 - 1
"""A count is not told beyond it."""

H = TypeVar("H", bound=Histogram)


def empty(kind: type[H]) -> H:
    """A histogram, or one with more to it, in which nothing was observed."""
    return kind([0] * (len(DURATION_BUCKETS) + 1), 0.0)


def observe(durations: Histogram, seconds: float, times: int = 1) -> None:
    """Count some more, that took *seconds* together."""
    bucket = bisect_left(DURATION_BUCKETS, seconds / times)
    durations.counts[bucket] = min(durations.counts[bucket] + times, MOST)
    durations.sum += seconds
