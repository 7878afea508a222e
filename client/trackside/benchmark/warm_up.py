"""The end of the warm-up of a measurement, by the change point of its rounds."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from math import log, sqrt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

LEAST = 3  # first rounds that never count: compilers, caches and allocators work in them
CERTAINTY = 0.01  # probability of a change point where there is none


def warm_up(durations: Sequence[float]) -> int:
    """Return how many of the first rounds are warm-up: those before the last slower part in the first half.

    A change point is where the ranks before and after differ most (Pettitt 1979), so that single outliers make none.

    Args:
        durations: Duration of each round, in order.
    """
    begin = min(LEAST, len(durations))
    while True:
        rest = durations[begin : begin + len(durations)]
        count = len(rest)
        ordered = sorted(rest)
        score, best, change = 0.0, 0.0, 0
        for place, value in enumerate(rest, 1):
            score += bisect_left(ordered, value) + bisect_right(ordered, value) - count
            if score > best and begin + place <= len(durations) / 2:
                best, change = score, place
        if not change or best < sqrt(-log(CERTAINTY) * (count**3 + count**2) / 6):
            return begin
        begin += change
