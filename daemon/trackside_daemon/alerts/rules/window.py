"""What one series was over a window, in a few points."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trackside_daemon.alerts.rules.query import How

POINTS = 12
"""So many parts of the window have a point each: what is said of the window is right to a twelfth of it."""

FULL = 0.9
"""The part of the window that must be known before a rate, a mean or a prediction is one: sampling has its jitter."""


class Window:
    """One series over a window of *seconds*.

    Args:
        how: What is asked of it, as `trackside_daemon.alerts.rules.query.Query` has it.
        seconds: The window's length.
        growing: It is a counter: what counts is how it grows, and a fall is a new beginning at 0.
        ahead: Seconds from now to what is predicted.
        fresh: What it has at its first sample grew since it was last looked for.
    """

    __slots__ = ("_ahead", "_count", "_growing", "_how", "_last", "_points", "_seconds", "_slope", "_total", "seen")

    def __init__(self, how: How, seconds: float, *, growing: bool, ahead: float = 0.0, fresh: bool = False) -> None:
        self._how = how
        self._seconds = seconds
        self._growing = growing
        self._ahead = ahead
        self._last = 0.0 if fresh else None
        self._total = 0.0
        self._count = 0
        self._points: deque[tuple[float, float, int]] = deque()
        self._slope = 0.0
        self.seen = 0.0

    def add(self, now: float, value: float) -> float | None:
        """The value at *now*, in seconds of a clock that only goes forward.

        Returns:
            What is asked of the series; None while too little is known.
        """
        self.seen = now
        fresh = not self._points and self._last is not None
        before = self._total
        self._grow(value)
        points, window = self._points, self._seconds
        if fresh:
            points.append((now, before, 0))
        elif not points or now - points[-1][0] >= window / POINTS - 1e-3:
            points.append((now, self._total, self._count))
            while len(points) > 1 and points[1][0] <= now - window:
                points.popleft()
            if self._how == "predict" or (self._how == "rate" and not self._growing):
                self._slope = _slope(points)
        return self._answer(now, value)

    def _grow(self, value: float) -> None:
        self._count += 1
        if self._how == "mean":
            self._total += value
        elif not self._growing:
            self._total = value
        elif self._last is not None:
            self._total += value - self._last if value >= self._last else value
        self._last = value

    def _answer(self, now: float, value: float) -> float | None:
        since, total, count = self._points[0]
        if self._how == "change":
            return self._total - total
        known = now - since
        if known < FULL * self._seconds:
            return None
        if self._how == "mean":
            return (self._total - total) / (self._count - count)
        if self._how == "predict":
            return value + self._slope * self._ahead
        return (self._total - total) / known if self._growing else self._slope


def _slope(points: deque[tuple[float, float, int]]) -> float:
    """Of the line of least squares, a second."""
    if len(points) < 2:
        return 0.0
    middle = sum(time for time, _, _ in points) / len(points)
    level = sum(value for _, value, _ in points) / len(points)
    spread = sum((time - middle) ** 2 for time, _, _ in points)
    return sum((time - middle) * (value - level) for time, value, _ in points) / spread
