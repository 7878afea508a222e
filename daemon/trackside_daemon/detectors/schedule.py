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

    def expects(self, place: float, excess: float, unit: float) -> bool:
        """Whether a pause at *place* is due; *unit* is the distance of two samples there."""
        alike = [earlier for earlier, took in self._pauses if took * ALIKE >= excess]
        if not alike:
            return False
        known = self._pauses[0][0] if len(self._pauses) == KEPT else self._start
        density = min(1.0, len(alike) * unit / max(unit, place - known))
        return any(
            place - earlier >= SHORTEST * unit
            and len(alike) * self._chance(alike, place, place - earlier, unit, density) < self._believed
            for earlier in reversed(alike)
        )

    def _chance(self, alike: list[float], place: float, gap: float, unit: float, density: float) -> float:
        """That pauses at random lie at *place* less two gaps, less three… and that the gap divides the place itself.

        Schedules count from the first step, so that the second pause tells one when it comes at twice the step of the first.
        """
        chance = 1.0
        whole = round(place / gap)
        off = abs(place - whole * gap)
        if whole >= 2 and off <= whole * unit:
            chance = min(1.0, (2 * off + unit) / gap)
        due = place - 2 * gap
        while chance * len(alike) >= self._believed:
            found = _nearest(alike, due)
            if abs(found - due) > OFF * unit:
                break
            chance *= min(1.0, (2 * abs(found - due) / unit + 1) * density)
            due = found - gap
        return chance


def _nearest(places: list[float], wanted: float) -> float:
    """Of *places*, the lowest first."""
    after = bisect_left(places, wanted)
    near = places[max(0, after - 1) : after + 1]
    return min(near, key=lambda place: abs(place - wanted))
