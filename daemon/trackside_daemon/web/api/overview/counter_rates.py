"""How much there is a second: counters of the page, followed over some seconds."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

SPAN = 10.0
"""Seconds over which a rate is reckoned; longer where it does not grow within them."""

Values = tuple["float | None", ...]


class _Point(NamedTuple):
    """Counters, all at the same moment; None for one that is not there."""

    time: float
    values: Values


class Counters:
    """Some counters that grow together. One that falls has begun anew, and with it all."""

    def __init__(self) -> None:
        self._points: deque[_Point] = deque()

    def add(self, time: float, values: Values) -> None:
        """What they are at a moment in seconds; the same moment again is no news."""
        if self._points and _fell(self._points[-1], time, values):
            self._points.clear()
        if self._points and self._points[-1].time == time:
            return
        self._points.append(_Point(time, values))
        while len(self._points) > 2 and self._points[1].time <= time - SPAN:
            self._points.popleft()

    def growth(self) -> tuple[float, Values]:
        """Seconds, and by how much each has grown in them; no seconds and nothing when only one moment is known."""
        if len(self._points) < 2:
            return 0.0, ()
        first, last = self._points[0], self._points[-1]
        grown = (
            None if new is None or old is None else new - old
            for old, new in zip(first.values, last.values, strict=True)
        )
        return last.time - first.time, tuple(grown)

    def rest(self, now: float) -> bool:
        """Whether they have not grown for three times as long as they usually take, and not for `SPAN`."""
        if not self._points:
            return False
        usual = (self._points[-1].time - self._points[0].time) / max(1, len(self._points) - 1)
        return now - self._points[-1].time > max(SPAN, 3 * usual)


def _fell(last: _Point, time: float, values: Values) -> bool:
    pairs = zip(last.values, values, strict=True)
    return time < last.time or any(new is not None and old is not None and new < old for old, new in pairs)
