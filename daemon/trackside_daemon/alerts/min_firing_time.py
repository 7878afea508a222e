"""For how long an alert fires at least: for longer each time, where it comes and goes."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable

    from trackside_daemon.model.finding import Finding

LEAST_SECONDS = 120.0
"""An alert fires for so long at least, so that a scrape a minute sees it; so does what happened once."""

LONGER = {"UserAlert": 900.0}
"""The same of those that are meant to be seen for longer."""

AGAIN_SECONDS = LONGEST_SECONDS = 3600.0
"""An alert that comes again within an hour of its end fires for twice as long as before, up to an hour: one that comes and goes,
at whatever pace, is told some 30 times a day at most, and not 700 times."""

REMEMBERED = 10_000
"""Alerts of late; with more, the oldest are forgotten."""


class Holds:
    """By alert, for how long it fired at least the last time, and when that ended.

    Args:
        least: Seconds that an alert fires at least.
    """

    def __init__(self, least: float = LEAST_SECONDS) -> None:
        self._least = least
        self._known: dict[Hashable, tuple[float, float]] = {}

    def least(self, alert: str) -> float:
        """Seconds for one that has not come of late."""
        return LONGER.get(alert, self._least)

    def begin(self, key: Hashable, alarm: Finding, now: float) -> float:
        """Seconds for one that begins to fire."""
        hold = self.least(alarm.alert)
        if alarm.once:
            return hold
        before, ended = self._known.pop(key, (0.0, inf))
        if 0 <= now - ended < AGAIN_SECONDS:
            hold = max(hold, min(LONGEST_SECONDS, 2 * before))
        self._known[key] = hold, inf
        if len(self._known) > REMEMBERED:
            del self._known[next(iter(self._known))]
        return hold

    def end(self, key: Hashable, now: float) -> None:
        """It fires no more."""
        if key in self._known:
            self._known[key] = self._known[key][0], now

    def forget(self, now: float) -> None:
        """Those that ended long ago, or in what a clock that was set back has made the future."""
        past = [key for key, (_, ended) in self._known.items() if ended < inf and not 0 <= now - ended < AGAIN_SECONDS]
        for key in past:
            del self._known[key]
