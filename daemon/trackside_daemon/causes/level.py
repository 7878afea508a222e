"""Usual level of a reading before a slow-down, and its level during it."""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.model.robust import middle_and_spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    Points = Sequence[tuple[float, float]]

BEFORE = 1800.0  # seconds before a slow-down that give the usual level
ENOUGH = 4  # fewest values that have a usual level
STEADY = 4  # values of a slow-down that count as independent at most: neighbouring ones are alike
SCALES = 4.0  # robust deviations beyond which a level has moved
# Distance from the usual level, as a multiple of that of the highest tenth, that chance does not reach: for few values of a
# slow-down, and for `STEADY` ones.
MARGINS = 2.5, 1.5


class SlowDown(NamedTuple):
    """Time in which a training was slower than usual.

    Attributes:
        began: Unix time of its beginning.
        ended: Unix time of its end, or now.
        lost: Share of that time that was lost, above 0 and up to 1.
        lasting: It may be as old as the run, so that waits count from 0 and not from their usual level.
    """

    began: float
    ended: float
    lost: float
    lasting: bool = False

    def can_explain(self, usual: float, now: float) -> float:
        """Return the share of the lost time, 0 to 1, that a wait explains, given as shares of the time."""
        # The usual waits of the steps in this time are not lost: those steps would have had them too.
        waited = min(1.0, now) - usual * (1 - self.lost)
        return min(1.0, max(0.0, waited / self.lost))


class Level(NamedTuple):
    """Level of a reading; of a counter, its increase per second.

    Attributes:
        usual: Median before, or of other ranks.
        spread: Robust standard deviation of a mean of as many values as the slow-down has.
        high: Level that chance does not reach, since few of the usual values come near it.
        now: Level now, over at least one interval between two samples.
        stretch: That interval divided by the duration of the slow-down, if it is longer.
    """

    usual: float
    spread: float
    high: float
    now: float
    stretch: float = 1.0

    @property
    def during(self) -> float:
        """Level during the slow-down alone, if all of the change belongs to it."""
        return self.usual + (self.now - self.usual) * self.stretch

    def rose(self, least: float) -> bool:
        """Return whether the level is above its usual one by more than *least* and by more than chance explains."""
        return self.now - self.usual > max(least, SCALES * self.spread, self.high - self.usual)

    def fell(self, ratio: float) -> bool:
        """Return whether the level has fallen to less than *ratio* of its usual one, by more than chance explains."""
        return self.now < ratio * self.usual and self.usual - self.now > SCALES * self.spread


def gauge_level(points: Points, slow: SlowDown) -> Level | None:
    """Return the level of a gauge; None if its usual level or its present one is unknown."""
    before = [value for time, value in points if slow.began - BEFORE <= time < slow.began]
    during = [value for time, value in points if slow.began <= time <= slow.ended]
    after = [value for time, value in points if time > slow.ended][:1]
    return level(before, median(during or after), len(during)) if during or after else None


def counter_level(points: Points, slow: SlowDown) -> Level | None:
    """Return the level of a counter, see `gauge_level`; an interval in which it was reset counts as unknown."""
    spans = [
        (began, ended, after - before)
        for (began, before), (ended, after) in pairwise(points)
        if ended > began and after >= before
    ]
    before = [
        grown / (ended - began) for began, ended, grown in spans if slow.began - BEFORE <= began and ended <= slow.began
    ]
    during = [span for span in spans if span[1] > slow.began and span[0] < slow.ended]
    seconds = sum(ended - began for began, ended, _ in during)
    if not seconds:
        return None
    usual = [0.0] * ENOUGH if slow.lasting else before
    known = level(usual, sum(grown for *_, grown in during) / seconds, len(during))
    duration = max(slow.ended - slow.began, 1e-3)
    return known and known._replace(stretch=max(1.0, seconds / duration))


def level(usual: Sequence[float], now: float, count: int = 1) -> Level | None:
    """Return the level *now* of *count* values compared with *usual* ones; None if those are fewer than `ENOUGH`."""
    if len(usual) < ENOUGH:
        return None
    middle, spread = middle_and_spread(usual)
    spread /= min(max(count, 1), STEADY) ** 0.5
    tenth = sorted(usual)[len(usual) * 9 // 10]
    return Level(middle, spread, middle + MARGINS[count >= STEADY] * (tenth - middle), now)
