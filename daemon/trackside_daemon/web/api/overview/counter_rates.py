"""Growth of counters over the last seconds, from which rates follow."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

SPAN = 10.0  # seconds over which a rate is measured; longer when the counters grow less often

Values = tuple["float | None", ...]


class _Point(NamedTuple):
    """Values of the counters at one time in seconds; None for an absent counter."""

    time: float
    values: Values


class CounterGroup:
    """Counters that grow together; when one falls, all are assumed to have restarted."""

    def __init__(self) -> None:
        self._points: deque[_Point] = deque()

    def add(self, time: float, values: Values) -> None:
        """Add the values at a time in seconds; a repeated time is ignored."""
        if self._points and _fell(self._points[-1], time, values):
            self._points.clear()
        if self._points and self._points[-1].time == time:
            return
        self._points.append(_Point(time, values))
        # The newest point that is at least `SPAN` old stays, so that the growth covers the whole span.
        while len(self._points) > 2 and self._points[1].time <= time - SPAN:
            self._points.popleft()

    def growth(self) -> tuple[float, Values]:
        """Return the seconds and each counter's growth over them; ``(0.0, ())`` with fewer than two points."""
        if len(self._points) < 2:
            return 0.0, ()
        first, last = self._points[0], self._points[-1]
        growth = (
            None if new is None or old is None else new - old
            for old, new in zip(first.values, last.values, strict=True)
        )
        return last.time - first.time, tuple(growth)

    def is_idle(self, now: float) -> bool:
        """Return True when the counters have not grown for `SPAN` and for three times their usual interval."""
        if not self._points:
            return False
        interval = (self._points[-1].time - self._points[0].time) / max(1, len(self._points) - 1)
        return now - self._points[-1].time > max(SPAN, 3 * interval)


def _fell(last: _Point, time: float, values: Values) -> bool:
    pairs = zip(last.values, values, strict=True)
    return time < last.time or any(new is not None and old is not None and new < old for old, new in pairs)
