"""Learns at which steps a training pauses by itself: to evaluate, to save, to load the next part of its data.

In real logs 95 of 100 steps that are much slower than their neighbours are such pauses, so a pause that fits a schedule
must not be told. But with some dozen earlier pauses nearly every step lies at equal distance from two of them; a schedule
is therefore believed only where chance would hardly make the pauses fit so well.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque

KEPT = 64
"""Pauses that are remembered."""

SHORTEST = 4
"""Samples; what comes more often is no pause but how the steps are."""

ALIKE = 3.0
"""A pause that is longer by more than this factor than those of a schedule is not one of them."""

OFF = 2.0
"""Samples by which a pause may come early or late."""

CROWDED = 10
"""One slow step in so many, over all that are remembered, and they are crowded."""

NEGLIGIBLE = 1e-4
"""A chance that needs no further proof, though there may be as many gaps as pauses."""

CHANCE = 0.03
"""A schedule of steps is believed when pauses at random would make one that fits as well less often than this."""

CHANCE_BY_TIME = 0.01
"""The same of the clock, which seldom sets pauses: it takes more to believe."""


class Schedule:
    """The pauses of late, and whether one more is the next of them; places are steps, or seconds.

    Args:
        start: The place of the first sample.
        chance: See `CHANCE`.
    """

    __slots__ = ("_believed", "_pauses", "_start")

    def __init__(self, start: float, *, chance: float) -> None:
        self._start = start
        self._believed = chance
        self._pauses: deque[tuple[float, float]] = deque(maxlen=KEPT)

    def note(self, place: float, excess: float) -> None:
        """A pause at *place* that took *excess* times as long as a step does, beyond that step."""
        self._pauses.append((place, excess))

    def forget_from(self, place: float) -> None:
        """The training went back to *place*: what lies behind it comes again."""
        self._pauses = deque((pause for pause in self._pauses if pause[0] < place), maxlen=KEPT)

    def crowded(self, place: float, unit: float) -> bool:
        """Whether slow steps are so many of late that they are how the steps are: nothing to tell, nothing to learn."""
        return len(self._pauses) == KEPT and place - self._pauses[0][0] < KEPT * CROWDED * unit

    def expects(self, place: float, excess: float, unit: float) -> bool:
        """Whether a pause at *place* is due; *unit* is the distance of two samples there.

        Schedules count from the first step: a gap that divides the place itself needs no third pause to be believed.
        """
        alike = [earlier for earlier, took in self._pauses if took * ALIKE >= excess]
        if not alike:
            return False
        known = self._pauses[0][0] if len(self._pauses) == KEPT else self._start
        density = min(1.0, len(alike) * unit / max(unit, place - known))
        oldest = alike[0] - OFF * unit
        for earlier in reversed(alike):
            gap = place - earlier
            if gap < SHORTEST * unit:
                continue
            whole = round(place / gap)
            chance = float(len(alike))
            if whole >= 2 and abs(place - whole * gap) <= whole * unit:
                chance *= min(1.0, (2 * abs(place - whole * gap) + unit) / gap)
            if earlier - gap > oldest:
                chance *= _chance(alike, gap, earlier - gap, unit, density)
            if chance < self._believed:
                return True
        return False


def _chance(alike: list[float], gap: float, due: float, unit: float, density: float) -> float:
    """The chance that pauses at random lie where one is due, and a gap before that, and so on."""
    chance = 1.0
    while chance > NEGLIGIBLE:
        at = bisect_left(alike, due)
        if at == len(alike) or (at and due - alike[at - 1] < alike[at] - due):
            at -= 1
        off = abs(alike[at] - due)
        if off > OFF * unit:
            break
        chance *= min(1.0, (2 * off / unit + 1) * density)
        due = alike[at] - gap
    return chance
