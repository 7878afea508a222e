"""Least firing times of alerts, which grow for alerts that come and go."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable

    from trackside_daemon.model.finding import Finding

# Least seconds that an alert fires, so that a scrape once a minute sees it; also the duration of an event.
MIN_SECONDS = 120.0

LONGER = {"UserAlert": 900.0}  # least seconds of alerts that should be visible for longer, by name

# Seconds after its end within which an alert that comes again fires for twice as long as before, and the upper bound of
# that. So an alert that comes and goes, at whatever pace, notifies about 30 times a day at most, instead of 700 times.
AGAIN_SECONDS = LONGEST_SECONDS = 3600.0

MAX_REMEMBERED = 10_000  # most alerts that are remembered; with more, the oldest are dropped


def longer(seconds: float) -> float:
    """Return the least firing time, in seconds, of an alert that comes again after one with this time."""
    return min(LONGEST_SECONDS, 2 * seconds)


class MinFiringTimes:
    """Least firing time of the latest occurrence of each alert, and when that ended.

    Args:
        least: Least seconds that an alert fires.
    """

    def __init__(self, least: float = MIN_SECONDS) -> None:
        self._least = least
        self._recent: dict[Hashable, tuple[float, float]] = {}

    def least(self, alert: str) -> float:
        """Return the least firing time, in seconds, of an alert that has not fired recently."""
        return LONGER.get(alert, self._least)

    def begin(self, key: Hashable, finding: Finding, now: float) -> float:
        """Register that an alert begins, and return its least firing time in seconds."""
        seconds = self.least(finding.alert)
        if finding.once:
            return seconds
        # Removed and inserted again, so that the oldest alert is the first of the dict.
        before, ended = self._recent.pop(key, (0.0, inf))
        if 0 <= now - ended < AGAIN_SECONDS:
            seconds = max(seconds, longer(before))
        self._recent[key] = seconds, inf
        if len(self._recent) > MAX_REMEMBERED:
            del self._recent[next(iter(self._recent))]
        return seconds

    def end(self, key: Hashable, seconds: float, now: float) -> None:
        """Register that an alert has ended, whose least firing time had become so many seconds."""
        if key in self._recent:
            self._recent[key] = seconds, now

    def expire(self, now: float) -> None:
        """Drop the alerts that ended long ago, or in the future because a clock was set back."""
        past = [key for key, (_, ended) in self._recent.items() if ended < inf and not 0 <= now - ended < AGAIN_SECONDS]
        for key in past:
            del self._recent[key]
