"""Detect memory that grows without end."""

import statistics
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import combinations
from math import inf
from operator import lt
from typing import NamedTuple

from trackside_daemon.detectors.base import Column, Context, Detection, Episode
from trackside_daemon.detectors.settings import DEFAULTS, DetectorThresholds
from trackside_daemon.model.text import byte_size, duration

BIN = 10  # Samples in the smallest bin. The minimum counts, because caches and batches come on top of it.
MERGED = 3  # bins that make one bin of the next size
BINS = 9  # consecutive bins that are compared
SIZES = 9  # Sizes of bins: 10, 30, 90 … 65,610 samples. A leak of a thousandth per minute shows in the longer ones.

# Excess of rising over falling pairs of bins, as a fraction of all pairs (Mann-Kendall S over its maximum).
RISING = 0.8

# The first bins of a process, which fills its caches and buffers, must grow by this fraction of the memory in use; or by so many
# bytes, without a bin that falls; or after so many bins at one level.
FILLING, FILLING_BYTES, LEVEL = 0.3, 64 * 2.0**20, 3

# Least slope of the last half of the bins, as a fraction of the first half's. A cache that fills up slows down: by a fifth within
# half of its time constant.
STILL = 0.8

BEFORE = 100  # earlier bins that are remembered: memory that goes up and down returns to them, a leak goes beyond
BEYOND = 0.75  # fraction of the growth by which a leak must exceed the earlier bins

# A leak goes back as far as the bins grew as fast, up to this factor. It has begun at the last bin that exceeds the least one
# by at most this fraction of the growth.
ALIKE, BEGUN = 4.0, 0.05

# A leak that fills the memory later than in the first number of seconds must have grown for the second: a buffer fills in less.
SOON, LASTING = 3600.0, 240.0

# Fraction of the reported growth below which the leak is over. A fraction of the memory in use instead would end
# every steady leak once enough has leaked, and keep the alert for a cache that is nearly full.
SLOWED = 1 / 3

TWICE = 2  # consecutive bins that must show a leak to begin an alert, and no leak to end it


class Bin(NamedTuple):
    """The minimum of some samples in bytes, with step and time of the first."""

    least: float
    step: int
    time: float


class MemoryLeak:
    """`HostMemoryLeak`: the minimum of memory rises by a share of itself over nine bins, steadily, and hardly slower at the end.

    Growth while the step does not change is not a leak of the training: it loads its data or its model.

    Attributes:
        limit: Bytes at which no memory is left now, infinite if they are far away; None if unknown.
    """

    alerts: tuple[str, ...] = ("HostMemoryLeak",)

    def __init__(self, thresholds: DetectorThresholds = DEFAULTS, *, limit: float | None = None) -> None:
        self.limit = limit
        self._grew = thresholds.leak_ratio
        self._open: list[list[tuple[float, int, float]]] = [[] for _ in range(SIZES)]
        self._bins: list[deque[Bin]] = [deque(maxlen=BEFORE + BINS) for _ in range(SIZES)]
        self._hits = [0] * SIZES
        self._episode = Episode("HostMemoryLeak", TWICE)
        self._size, self._grown = 0, 0.0  # of the bins that were reported, and their growth in bytes

    def evaluate(self, column: Column, context: Context) -> Iterator[Detection]:  # noqa: ARG002  memory counts in every phase
        """Yield what the next values show, in bytes."""
        first = self._open[0]
        for at, (step, time, level) in enumerate(zip(*column, strict=True)):
            if 0 < level < inf:
                first.append((level, step, time))
                if len(first) == BIN:
                    yield from self._close(at, 0)

    def _close(self, at: int, size: int) -> Iterator[Detection]:
        """Judge a full bin of *size*, and add it to the next larger bin."""
        filled = self._open[size]
        last = Bin(*filled[-1])
        least = Bin(min(filled)[0], *filled[0][1:])
        filled.clear()
        self._bins[size].append(least)
        if len(self._bins[size]) >= BINS:
            yield from self._judge(at, size, last)
        if size + 1 < SIZES:
            self._open[size + 1].append(least)
            if len(self._open[size + 1]) == MERGED:
                yield from self._close(at, size + 1)

    def _judge(self, at: int, size: int, last: Bin) -> Iterator[Detection]:
        bins = [*self._bins[size]]
        levels = [each.least for each in bins[-BINS:]]
        grown = levels[-1] - levels[0]
        leaks = last.step > bins[-BINS].step and _grows(levels, self._grew) and self._goes_on(bins, last)
        self._hits[size] = self._hits[size] + 1 if leaks else 0
        if not self._episode.fires:
            if self._hits[size] >= TWICE:
                self._size, self._grown = size, grown
                yield self._episode.report("warning", at, self._text(bins[_begun(bins) :], BIN * MERGED**size))
        elif self._size == size and self._episode.follow(calm=grown < SLOWED * self._grown or _rises(levels) <= 0):
            how = "no longer grows" if _rises(levels) <= 0 else "grows less than a third as fast as before"
            yield self._episode.end(at, f"memory {how}: {byte_size(levels[-1])} at step {last.step:,}")

    def _goes_on(self, bins: Sequence[Bin], last: Bin) -> bool:
        """Return whether the growth goes beyond the earlier bins, and is neither a process that fills its caches nor a buffer."""
        compared, before = bins[-BINS:], bins[:-BINS]
        highest = max(each.least for each in compared)
        grown = compared[-1].least - compared[0].least
        if any(each.least >= highest - BEYOND * grown for each in before) or highest > compared[-1].least:
            return False
        begun = _begun(bins)
        seconds, rate = last.time - bins[begun].time, grown / max(last.time - compared[0].time, 1e-9)
        if self.limit is not None and seconds < LASTING and self.limit - highest > SOON * rate:
            return False
        return len(before) >= BINS or _is_no_filling([each.least for each in bins[: begun + 1]], compared)

    def _text(self, bins: Sequence[Bin], samples: int) -> str:
        first, last = bins[0], bins[-1]
        grew = last.least - first.least
        seconds = last.time - first.time
        if seconds > 0:
            rate = f"{byte_size(grew / seconds * 3600)} an hour"
        else:
            rate = f"{byte_size(grew / (len(bins) - 1) / samples * 1000)} in 1,000 samples"
        text = f"memory has grown steadily since step {first.step:,}, from {byte_size(first.least)} to {byte_size(last.least)}, {rate}"
        if self.limit is not None and seconds > 0 and self.limit < inf:
            text += f": {duration(max(0.0, self.limit - last.least) / grew * seconds)} until no memory is left"
        return text


def _begun(bins: Sequence[Bin]) -> int:
    """Return the index of the bin with which the growth of the compared bins began, maybe long before them."""
    first = len(bins) - BINS
    slope = (bins[-1].least - bins[first].least) / (BINS - 1)
    while first and slope / ALIKE < bins[first].least - bins[first - 1].least < slope * ALIKE:
        first -= 1
    least = bins[first].least + BEGUN * (bins[-1].least - bins[first].least)
    return max(place for place in range(first, len(bins)) if bins[place].least <= least)


def _is_no_filling(before: Sequence[float], compared: Sequence[Bin]) -> bool:
    """Return whether a process grows more than its caches and buffers do; *before* are the levels until it began to grow."""
    levels = [each.least for each in compared]
    grown = levels[-1] - levels[0]
    level = len(before) >= LEVEL and max(before[-LEVEL:]) - min(before[-LEVEL:]) <= BEGUN * grown
    return level or grown >= FILLING * levels[0] or (grown >= FILLING_BYTES and all(map(lt, levels, levels[1:])))


def _rises(levels: list[float]) -> float:
    """Return the excess of rising over falling pairs, as a fraction of all pairs: 1 for steady growth, 0 for none."""
    signs = [(later > earlier) - (later < earlier) for earlier, later in combinations(levels, 2)]
    return sum(signs) / len(signs)


def _grows(levels: list[float], grew: float) -> bool:
    """Return whether the bins rise enough, and at the end about as fast as at the beginning; slopes are Theil-Sen."""
    if levels[-1] - levels[0] < grew * levels[0] or _rises(levels) < RISING:
        return False
    half = len(levels) // 2
    return _slope(levels) * len(levels) >= grew * levels[0] and _slope(levels[half:]) >= STILL * _slope(
        levels[: half + 1]
    )


def _slope(levels: list[float]) -> float:
    """Return the median slope per bin of all pairs."""
    return statistics.median(
        (levels[later] - levels[earlier]) / (later - earlier) for earlier, later in combinations(range(len(levels)), 2)
    )
