"""One series over a window, stored in a few points."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trackside_daemon.alerts.rules.query import Function

POINTS = 12  # points per window: results are accurate to a twelfth of the window

# Share of the window that must be known before a rate, a mean or a prediction exists, because sampling has jitter.
FULL = 0.9


class Window:
    """One series over a window of *seconds*.

    Args:
        function: Function over the window, see `trackside_daemon.alerts.rules.query.Query`.
        seconds: Length of the window.
        counter: The series is a counter: only its growth counts, and a fall is a reset to 0.
        ahead: Seconds from now to the predicted value.
        fresh: The first value counts as growth.
    """

    __slots__ = (
        "_ahead",
        "_count",
        "_counter",
        "_function",
        "_last",
        "_points",
        "_seconds",
        "_slope",
        "_total",
        "seen",
    )

    def __init__(
        self, function: Function, seconds: float, *, counter: bool, ahead: float = 0.0, fresh: bool = False
    ) -> None:
        self._function = function
        self._seconds = seconds
        self._counter = counter
        self._ahead = ahead
        self._last = 0.0 if fresh else None
        self._total = 0.0
        self._count = 0
        self._points: deque[tuple[float, float, int]] = deque()
        self._slope = 0.0
        self.seen = 0.0

    def add(self, now: float, value: float) -> float | None:
        """Add the value at *now*, in seconds of the monotonic clock.

        Returns:
            The result of the function; None while the window has too few values.
        """
        self.seen = now
        fresh = not self._points and self._last is not None
        before = self._total
        self._accumulate(value)
        points, window = self._points, self._seconds
        if fresh:
            # The total before the first value, so that the value counts as growth.
            points.append((now, before, 0))
        # The tolerance is for ticks that come slightly early.
        elif not points or now - points[-1][0] >= window / POINTS - 1e-3:
            points.append((now, self._total, self._count))
            # One point at or before the begin of the window stays.
            while len(points) > 1 and points[1][0] <= now - window:
                points.popleft()
            # The slope changes little between two points, so it is computed only here.
            if self._function == "predict" or (self._function == "rate" and not self._counter):
                self._slope = _slope(points)
        return self._result(now, value)

    def _accumulate(self, value: float) -> None:
        self._count += 1
        if self._function == "mean":
            self._total += value
        elif not self._counter:
            self._total = value
        elif self._last is not None:
            # A counter that fell was reset to 0, so it has grown by its whole value.
            self._total += value - self._last if value >= self._last else value
        self._last = value

    def _result(self, now: float, value: float) -> float | None:
        since, total, count = self._points[0]
        if self._function == "change":
            return self._total - total
        covered = now - since
        if covered < FULL * self._seconds:
            return None
        if self._function == "mean":
            return (self._total - total) / (self._count - count)
        if self._function == "predict":
            return value + self._slope * self._ahead
        return (self._total - total) / covered if self._counter else self._slope


def _slope(points: deque[tuple[float, float, int]]) -> float:
    """Return the slope of the least-squares line, per second."""
    if len(points) < 2:
        return 0.0
    middle = sum(time for time, _, _ in points) / len(points)
    level = sum(value for _, value, _ in points) / len(points)
    spread = sum((time - middle) ** 2 for time, _, _ in points)
    return sum((time - middle) * (value - level) for time, value, _ in points) / spread
