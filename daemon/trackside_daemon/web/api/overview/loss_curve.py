"""A run's loss curve, reduced to a bounded number of points that cover all of its steps evenly."""

from __future__ import annotations

from trackside_daemon.model.metric import json_number

MAX_POINTS = 60  # points of a sparkline; up to twice as many are kept in memory

Points = list[tuple[int, float]]
"""Ascending steps, and the loss at each."""


class LossCurve:
    """A loss curve built from one value a second; the history supplies what came before and between.

    Args:
        late: True when the run made steps before this daemon saw it.
    """

    def __init__(self, *, late: bool) -> None:
        self._late = late
        self._history_added = False
        self._points: Points = []
        self._newest: tuple[int, float] | None = None
        self._stride = 1

    def add(self, step: int, loss: float) -> None:
        """Add the newest loss; an older or repeated step is ignored."""
        if self._newest is not None and step <= self._newest[0]:
            return
        self._newest = step, loss
        if not self._points or step >= self._points[-1][0] + self._stride:
            self._points.append(self._newest)
            self._thin()

    @property
    def needs_history(self) -> bool:
        """Return True when the history has points that this curve lacks: for young runs and those of an earlier daemon."""
        return not self._history_added and (self._late or len(self._points) < MAX_POINTS // 2)

    def add_history(self, stored: Points) -> None:
        """Merge the points that the history has."""
        self._points = sorted({**dict(stored), **dict(self._points)}.items())
        if self._points and (self._newest is None or self._newest[0] < self._points[-1][0]):
            self._newest = self._points[-1]
        # The history commits rows once a second: a curve of a single point is read again.
        self._history_added = len(self._points) > 1
        self._thin()

    def sparkline(self) -> list[float | str]:
        """Return at most `MAX_POINTS` losses, oldest first, always including the newest."""
        every = -(-len(self._points) // (MAX_POINTS - 1)) or 1
        points = self._points[::every]
        if self._newest is not None and points[-1:] != [self._newest]:
            points.append(self._newest)
        return [json_number(loss) for _, loss in points]

    def _thin(self) -> None:
        """Double the distance between points when there are too many; drop those closest to their predecessor."""
        while len(self._points) > 2 * MAX_POINTS:
            span = self._points[-1][0] - self._points[0][0]
            # At least one more, so that the loop ends even if the span is small.
            self._stride = max(self._stride + 1, span // MAX_POINTS)
            kept = self._points[:1]
            for point in self._points[1:]:
                if point[0] >= kept[-1][0] + self._stride:
                    kept.append(point)
            self._points = kept
