"""How often a run makes progress: from when on its silence means something."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from trackside_daemon.detectors.window import Window

if TYPE_CHECKING:
    from collections.abc import Sequence

GAPS = 512
"""Gaps of late whose 99th percentile counts."""

OVER_USUAL, OVER_LONGEST = 5.0, 3.0
"""A silence is a stall when it is so many times the usual gap, and so many times the longest."""

ENOUGH = 3
ENOUGH_STEPS = 5
"""So many gaps and steps make a pace. Before, kernels are compiled and caches filled."""

BEGINNING = 1800.0
"""Seconds of silence that are a stall before there is a pace, and in a pause that is entered for the first time."""

PAUSE, OVER_PAUSE = 600.0, 5.0
"""Seconds that a pause which was made before may last, and times the longest gap: one evaluation is larger than another."""

REMEMBERED = 2000
REMEMBERED_SECONDS = 12 * 3600.0
"""The longest gap is remembered for so many gaps and so long, and for twice that at most: pauses come by schedule."""

SEEDED = 240.0
"""Seconds of silence that are a stall by what is known of a run from before this daemon, which may not know its pauses."""

OVER_MEAN = 10.0
"""The same in means of all its gaps."""

WARNING = 0.6
"""The share of the deadline after which it is a warning."""


class Longest:
    """The longest gap of late."""

    __slots__ = ("_before", "_count", "_current", "_since")

    def __init__(self) -> None:
        self._current = self._before = self._since = 0.0
        self._count = 0

    def add(self, gap: float, at: float) -> None:
        """A gap, in seconds, that ended *at* this time."""
        self._count += 1
        if self._count > REMEMBERED and at - self._since > REMEMBERED_SECONDS:
            self._before, self._current = self._current, 0.0
            self._count, self._since = 0, at
        self._current = max(self._current, gap)

    @property
    def seconds(self) -> float:
        """How long it was."""
        return max(self._current, self._before)


class Pace:
    """The gaps between one push and the next, in seconds: a training that pushes each 100 steps is silent for 99 of them.

    Args:
        floor: Seconds of silence that are never a stall.
    """

    def __init__(self, floor: float) -> None:
        self._floor = floor
        self._gaps = Window(GAPS)
        self._longest = Longest()
        self.steps = 0
        self._seeded = 0.0

    def seed(self, count: float, usual: float, longest: float, gap: float) -> None:
        """What a run tells of all that it has made, also before this daemon was there.

        Args:
            count: Steps that were timed.
            usual: Seconds of a step: of 100 steps 99 were shorter.
            longest: Those of the longest.
            gap: The mean from one push to the next.
        """
        if count >= ENOUGH_STEPS:
            self._seeded = max(SEEDED, OVER_USUAL * usual, OVER_LONGEST * longest, OVER_MEAN * gap)

    def add(self, gap: float, steps: int, at: float) -> None:
        """The run went on by so many *steps* after *gap* seconds."""
        self.steps += steps
        self._gaps.add(gap)
        self._longest.add(gap, at)

    @property
    def known(self) -> bool:
        """Whether there are enough to tell what is usual."""
        return len(self._gaps) >= ENOUGH and self.steps >= ENOUGH_STEPS

    @property
    def usual(self) -> float:
        """Seconds: of 100 gaps 99 are shorter."""
        ordered = self._gaps.ordered
        return ordered[ceil(0.99 * len(ordered)) - 1] if ordered else 0.0

    @property
    def longest(self) -> float:
        """Seconds of the longest gap of late."""
        return self._longest.seconds

    @property
    def deadline(self) -> float:
        """Seconds of silence after which the run is stalled."""
        if not self.known:
            return max(self._seeded or BEGINNING, self._floor)
        return max(self._floor, OVER_USUAL * self.usual, OVER_LONGEST * self.longest)


def recalled(floor: float, pushes: Sequence[tuple[float, int]]) -> Pace:
    """The pace of a run that has made these *pushes*: when, in Unix seconds, and at which step."""
    pace, (at, high) = Pace(floor), pushes[0]
    for time, step in pushes:
        if step > high:
            pace.add(time - at, step - high, 0.0)
        if step != high:
            at, high = time, step
    return pace
