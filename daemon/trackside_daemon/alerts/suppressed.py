"""Alarms that last and may not fire for now: those who say them say them once, so the book has to keep them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.model.finding import SEVERITIES, Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST = 1000
"""So many wait; of more the least severe go, and of those the oldest."""

_Identity = tuple[str, str, tuple[tuple[str, str], ...]]


class Waiting:
    """What is explained by something else, is off, or finds no room: until it is over, or may fire."""

    def __init__(self) -> None:
        self._by: dict[str, dict[_Identity, Finding]] = {severity: {} for severity in SEVERITIES}

    def __iter__(self) -> Iterator[Finding]:
        """All as of now, the worst first."""
        return iter([alarm for severity in reversed(SEVERITIES) for alarm in self._by[severity].values()])

    def __contains__(self, alarm: Finding) -> bool:
        return any(_identity(alarm) in some for some in self._by.values())

    def put(self, alarm: Finding) -> None:
        """It waits from now on, or as it is now; what nobody will say the end of does not."""
        if alarm.once:
            return
        self.drop(alarm)
        self._by[alarm.severity][_identity(alarm)] = alarm
        if sum(map(len, self._by.values())) > MOST:
            least = next(some for some in self._by.values() if some)
            del least[next(iter(least))]

    def drop(self, alarm: Finding) -> None:
        """It is over, or fires."""
        for some in self._by.values():
            some.pop(_identity(alarm), None)


def _identity(alarm: Finding) -> _Identity:
    return alarm.alert, alarm.run, alarm.labels
