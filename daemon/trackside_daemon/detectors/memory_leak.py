"""Memory that grows without end."""

from __future__ import annotations

from collections import deque
from itertools import combinations
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.detectors.base import Detection
from trackside_daemon.detectors.wording import in_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trackside_daemon.detectors.base import Column, Context

BIN = 10
"""Samples that make a bin, of which the least counts: caches and batches come on top."""

MERGED = 3
"""Bins that make one of the next size."""

BINS = 9
"""Bins in a row that are looked at."""

SIZES = 7
"""Bins of 10, 30, 90… 7,290 samples: a leak of a thousandth a minute shows in the longer ones."""

RISING = 0.8
"""Of all pairs of bins so many more rise than fall (Mann and Kendall's S over its greatest)."""

GREW = 0.03
"""Over all bins, at least."""

STILL = 0.5
"""The slope over the last bins is at least this part of that over all: what fills a cache slows down."""
LAST = 5

BEFORE = 100
"""Bins before those that are looked at: memory that goes up and down comes back to where it was, a leak goes beyond."""

BEYOND = 0.75
"""The part of the growth by which it does."""

SLOWED = 1 / 3
"""Of the growth that was told: what grows by less is over. A part of what is held instead would end every steady leak, once
enough has leaked, and keep a cache that hardly fills any more.
"""

TWICE = 2
"""Bins in a row at which it must be so, and at which it must not be any more for it to be over."""


class Bin(NamedTuple):
    """The least of some samples, and where they began."""

    least: float
    step: int
    time: float


class MemoryLeak:
    """A floor of memory that rises by *grew* in nine bins, steadily, and no slower at the end.

    Growth while the step stands still is no leak of the training: it loads its data or its model.

    Args:
        limit: Bytes at which the process is killed; None when it is not known.
        grew: The least growth over the bins that are looked at, as a part of what is held.
    """

    alerts: tuple[str, ...] = ("HostMemoryLeak",)

    def __init__(self, *, limit: float | None = None, grew: float = GREW) -> None:
        self._limit = limit
        self._grew = grew
        self._open: list[list[Bin]] = [[] for _ in range(SIZES)]
        self._bins: list[deque[Bin]] = [deque(maxlen=BINS) for _ in range(SIZES)]
        self._before: list[deque[float]] = [deque(maxlen=BEFORE) for _ in range(SIZES)]
        self._hits = [0] * SIZES
        self._told: int | None = None
        self._grown = 0.0
        self._calm = 0

    def evaluate(self, column: Column, context: Context) -> Iterator[Detection]:  # noqa: ARG002  memory is held in every phase
        """Bytes, in order."""
        first = self._open[0]
        for at, (step, time, held) in enumerate(zip(*column, strict=True)):
            if 0 < held < inf:
                first.append(Bin(held, step, time))
                if len(first) == BIN:
                    yield from self._close(at, 0)

    def _close(self, at: int, size: int) -> Iterator[Detection]:
        """A bin of *size* is full: it is judged, and is part of one of the next size."""
        filled = self._open[size]
        last = filled[-1]
        least = Bin(min(part.least for part in filled), filled[0].step, filled[0].time)
        filled.clear()
        bins = self._bins[size]
        if len(bins) == BINS:
            self._before[size].append(bins[0].least)
        bins.append(least)
        if len(bins) == BINS:
            yield from self._judge(at, size, bins, last)
        if size + 1 < SIZES:
            self._open[size + 1].append(least)
            if len(self._open[size + 1]) == MERGED:
                yield from self._close(at, size + 1)

    def _judge(self, at: int, size: int, bins: deque[Bin], last: Bin) -> Iterator[Detection]:
        held = [each.least for each in bins]
        leaks = last.step > bins[0].step and _grows(held, self._grew) and self._beyond(held, size)
        self._hits[size] = self._hits[size] + 1 if leaks else 0
        if self._told is None and self._hits[size] >= TWICE:
            self._told, self._calm, self._grown = size, 0, held[-1] - held[0]
            yield Detection("HostMemoryLeak", "warning", at, self._text(bins, BIN * MERGED**size))
        elif self._told == size:
            stands = held[-1] - held[0] < SLOWED * self._grown or _rises(held) <= 0
            self._calm = self._calm + 1 if stands else 0
            if self._calm >= TWICE:
                how = "no more" if _rises(held) <= 0 else "less than a third as fast as it did"
                text = f"memory grows {how}: {in_bytes(held[-1])} at step {last.step:,}"
                self._forget()
                yield Detection("HostMemoryLeak", "warning", at, text, over=True)

    def _forget(self) -> None:
        """It is over: what has grown so far was told, and only what grows from here on, and beyond it, is news."""
        self._told = None
        self._hits = [0] * SIZES
        for bins, before in zip(self._bins, self._before, strict=True):
            before.extend(each.least for each in bins)
            bins.clear()

    def _beyond(self, held: list[float], size: int) -> bool:
        """Whether it is the highest floor of late, and by most of its growth."""
        least = held[-1] - BEYOND * (held[-1] - held[0])
        return held[-1] == max(held) and all(before < least for before in self._before[size])

    def _text(self, bins: deque[Bin], samples: int) -> str:
        first, last = bins[0], bins[-1]
        grew = last.least - first.least
        seconds = last.time - first.time
        if seconds > 0:
            rate = f"{in_bytes(grew / seconds * 3600)} an hour"
        else:
            rate = f"{in_bytes(grew / (BINS - 1) / samples * 1000)} in 1,000 samples"
        text = f"memory grows steadily since step {first.step:,}, from {in_bytes(first.least)} to {in_bytes(last.least)}, {rate}"
        if self._limit is not None and seconds > 0:
            text += (
                f": {_duration((self._limit - last.least) / grew * seconds)} until its limit of {in_bytes(self._limit)}"
            )
        return text


def _rises(held: list[float]) -> float:
    """How many more pairs rise than fall, over how many there are: 1 for steady growth, 0 for none."""
    signs = [(later > earlier) - (later < earlier) for earlier, later in combinations(held, 2)]
    return sum(signs) / len(signs)


def _grows(held: list[float], grew: float) -> bool:
    """Whether it rises, by enough, and at the end still does; slopes are Theil and Sen's."""
    if held[-1] - held[0] < grew * held[0] or _rises(held) < RISING:
        return False
    slope = _slope(held, 0)
    return slope * len(held) >= grew * held[0] and _slope(held, len(held) - LAST) >= STILL * slope


def _slope(held: list[float], since: int) -> float:
    """The median slope, per bin, of the pairs whose later one comes after *since*."""
    slopes = sorted(
        (held[later] - held[earlier]) / (later - earlier)
        for later in range(since + 1, len(held))
        for earlier in range(since, later)
    )
    return slopes[len(slopes) // 2]


def _duration(seconds: float) -> str:
    if seconds < 5400:
        return f"{max(0.0, seconds) / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172800 else f"{seconds / 86400:.1f} days"
