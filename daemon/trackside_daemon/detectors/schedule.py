"""Learn at which steps a training pauses on purpose: to evaluate, to save, to load the next part of its data.

In real logs, 95 of 100 steps that are much slower than their neighbours are such pauses, so a pause that fits a schedule must
not be reported. But with a dozen earlier pauses, nearly every step lies at equal distance from two of them. A schedule is
therefore accepted only where random pauses would hardly fit as well.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque

KEPT = 64  # pauses that are remembered
SHORTEST = 4  # Shortest gap in samples. Anything more frequent is not a pause but the normal duration of some steps.
ALIKE = 3.0  # factor by which a pause may be longer than the others of its schedule
CROWDED = 10  # slow steps are crowded if there is one in so many steps, over all that are remembered
OFF = 2.0  # samples by which a pause may come early or late: less than `SHORTEST`, or a pause would follow itself
NEGLIGIBLE = 1e-4  # probability that needs no further proof, even with as many candidate gaps as pauses

# A schedule of steps is accepted if random pauses would fit as well with a smaller probability than this.
CHANCE = 0.03

CHANCE_BY_TIME = 0.01  # the same for schedules by time, which are rarer and need more proof


class Schedule:
    """Recent pauses, and whether another one fits their schedule. Places are steps, or seconds.

    Args:
        start: The place of the first sample.
        chance: See `CHANCE`.
    """

    __slots__ = ("_accepted", "_pauses", "_start")

    def __init__(self, start: float, *, chance: float) -> None:
        self._start = start
        self._accepted = chance
        self._pauses: deque[tuple[float, float]] = deque(maxlen=KEPT)

    def note(self, place: float, excess: float) -> None:
        """Record a pause at *place* that took *excess* times as long as a step, in addition to that step."""
        self._pauses.append((place, excess))

    def forget_from(self, place: float) -> None:
        """Forget the pauses from *place* on, because the training went back to it."""
        self._pauses = deque((pause for pause in self._pauses if pause[0] < place), maxlen=KEPT)

    def crowded(self, place: float, unit: float) -> bool:
        """Return whether recent slow steps are so many that they are normal, as on a noisy host: nothing to report."""
        return len(self._pauses) == KEPT and place - self._pauses[0][0] < KEPT * CROWDED * unit

    def expects(self, place: float, excess: float, unit: float) -> bool:
        """Return whether a pause at *place* is due; *unit* is the distance of two samples there.

        Schedules count from the first step, so a gap that divides the place itself needs no third pause.
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
            if chance < self._accepted:
                return True
        return False


def _chance(alike: list[float], gap: float, due: float, unit: float, density: float) -> float:
    """Return the probability that random pauses lie where one is due, one gap before that, and so on."""
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
