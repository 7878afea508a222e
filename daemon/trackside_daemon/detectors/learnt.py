"""Measure a rise of the loss by what the training has learnt so far, by how the loss wanders, and by how long it took."""

from __future__ import annotations

from math import inf, log, sqrt
from typing import TYPE_CHECKING

from trackside_daemon.detectors.base import HUGE
from trackside_daemon.model.robust import NORMAL, SortedWindow

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FIRST = 5  # samples whose second highest is the initial loss: a loss that is logged rarely may have fallen by the third

# Share of what was learnt below which a rise is only information and no spike. Late in a training that has converged, the
# noise of the loss is many times its level and still next to nothing of the fall.
MUCH = 0.05

# Samples in the shortest block, and the number of lengths, each twice the one before. A loss wanders with the order of
# its data, and only the means of long blocks show this: successive samples look quieter than they are.
BLOCK, LENGTHS = 8, 6

KNOWN, KEPT = 4, 24  # bends that are needed for a noise, and kept
POINTS = 64  # levels of the whole run that are kept

# A rise is sudden that would undo all that was learnt in a quarter of the time that it took: a target that moves, or a penalty
# that is annealed, changes the loss about as slowly as the training does.
FASTER = 4

# Standard deviations of a random walk's half step per median bend, and of white noise per median bend at turns.
BEND, TURN = NORMAL / 2, 0.53


class Learnt:
    """The initial loss of one key."""

    __slots__ = ("_first",)

    def __init__(self) -> None:
        self._first: list[float] = []

    def add(self, values: Sequence[float]) -> None:
        """Add the next losses; those that are not finite do not count."""
        if len(self._first) < FIRST:
            self._first += [value for value in values if -HUGE < value < HUGE][: FIRST - len(self._first)]

    def lost(self, rise: float, level: float) -> float:
        """Return the share of the fall from the initial loss to *level* that a *rise* undoes; infinite without a fall."""
        learnt = sorted(self._first)[-2] - level
        return rise / learnt if learnt > 0 else inf

    def undone(self, lost: float, rise: float, level: float) -> float:
        """Return the share that a rise undoes, in the mean of the fall itself and its logarithm.

        *lost* is that share of the fall itself. The last factors of a fall are next to nothing of it and took most of the
        training.
        """
        if lost >= 1 or level <= 0:
            return lost
        fall = log(sorted(self._first)[-2]) - log(level)
        return sqrt(lost * (log(level + rise) - log(level)) / fall) if fall else lost


class Wander:
    """The noise of the levels of successive blocks, for blocks of several lengths: the bends between three levels in a row.

    Args:
        level: The level of the samples of a shortest block; the mean of two levels is that of a block of twice the length.
        turns: Only bends count at which the level turns: a descent has none.
    """

    __slots__ = ("_bends", "_blocks", "_last", "_level", "_noise", "_turns")

    def __init__(self, level: Callable[[list[float]], float], *, turns: bool) -> None:
        self._level, self._turns = level, turns
        self._blocks = 0
        self._last = [(0.0, 0.0)] * LENGTHS
        self._bends = [SortedWindow(KEPT) for _ in range(LENGTHS)]
        self._noise = inf if turns else 0.0

    def add(self, block: list[float]) -> None:
        """Add the next `BLOCK` finite numbers."""
        level = self._level(block)
        self._blocks += 1
        for length, bends in enumerate(self._bends):
            first, second = self._last[length]
            self._last[length] = second, level
            count = self._blocks >> length
            there, back = second - first, second - level
            if count > 2 and (there * back > 0 or not self._turns):
                bends.add(abs(there + back))  # a steady fall is no noise
            if count & 1:
                break
            level = (second + level) / 2

    def noise(self) -> float:
        """Return a robust standard deviation of the levels of the length that has the largest.

        The shortest blocks have half of the samples of a level, so their noise counts as that of two. It is unknown at first: 0, or
        infinite for *turns*, because a series of few values hardly turns.
        """
        noises = [bends.median() if len(bends) >= KNOWN else 0.0 for bends in self._bends]
        noise = max(noises[0] / sqrt(2), *noises[1:])
        self._noise = noise * (TURN if self._turns else BEND) or self._noise
        return self._noise


def mean(block: list[float]) -> float:
    """Return the mean of a block."""
    return sum(block) / BLOCK


def middle(block: list[float]) -> float:
    """Return the mean of the middle half of a block, which few outliers do not move."""
    return sum(sorted(block)[BLOCK // 4 : -BLOCK // 4]) / (BLOCK // 2)


class Course:
    """The level of a loss over the whole run, at most `POINTS` of them at equal distances, which double when there are more."""

    __slots__ = ("_every", "_levels", "_seen")

    def __init__(self) -> None:
        self._every = 1
        self._seen = 0
        self._levels: list[float] = []

    def add(self, level: float) -> None:
        """Add the level at the next sample."""
        if self._seen % self._every == 0:
            self._levels.append(level)
            if len(self._levels) > POINTS:
                del self._levels[1::2]
                self._every *= 2
        self._seen += 1

    def is_sudden(self, lowest: float, rise: float, lost: float) -> bool:
        """Return whether the level rose `FASTER` from *lowest* than the training learnt; the rise undid the share *lost* of that.

        The middle half of the rise counts, until the level is first above it: a level that is noisy may fall into it again. What a
        median and the distance of the levels need to show a jump is no time that it took.
        """
        low, high = lowest + rise / 4, lowest + 3 * rise / 4
        fell = next((at for at, level in enumerate(self._levels) if level <= low), 0)
        since = self._levels[fell:]
        before = fell + sum(lowest - rise / 4 < level <= low for level in since)
        top = next((at for at, level in enumerate(since) if level >= high), len(since))
        foot = max((at for at in range(top) if since[at] <= low), default=-1)
        lasted = top - foot - 1
        blurred = max(1.0, 2 * BLOCK / self._every)
        return 2 * FASTER * lasted <= before and 2 * FASTER * (lasted - blurred) <= min(1.0, lost) * before
