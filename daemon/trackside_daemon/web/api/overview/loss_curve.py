"""The course of a run's loss in few points: all of its steps, evenly, however many they are."""

from __future__ import annotations

from trackside_daemon.model.metric import json_number

SHOWN = 60
"""Points of a sparkline; twice as many are kept at most."""

Points = list[tuple[int, float]]
"""Steps that rise, and the loss at each."""


class Curve:
    """Followed from the state once a second; of what was before and between, the history tells.

    Args:
        late: There was more of it before it was followed.
    """

    def __init__(self, *, late: bool) -> None:
        self._late = late
        self._filled = False
        self._points: Points = []
        self._newest: tuple[int, float] | None = None
        self._stride = 1

    def add(self, step: int, loss: float) -> None:
        """The newest loss; an older step is no news."""
        if self._newest is not None and step <= self._newest[0]:
            return
        self._newest = step, loss
        if not self._points or step >= self._points[-1][0] + self._stride:
            self._points.append(self._newest)
            self._thin()

    @property
    def missing(self) -> bool:
        """Whether the history has more of it than is known here, as of a run that is young or was before this daemon."""
        return not self._filled and (self._late or len(self._points) < SHOWN // 2)

    def fill(self, kept: Points) -> None:
        """What the history has of it."""
        self._points = sorted({**dict(kept), **dict(self._points)}.items())
        if self._points and (self._newest is None or self._newest[0] < self._points[-1][0]):
            self._newest = self._points[-1]
        self._filled = True
        self._thin()

    def shown(self) -> list[float | str]:
        """At most `SHOWN` of its losses, the newest the last."""
        every = -(-len(self._points) // (SHOWN - 1)) or 1
        points = self._points[::every]
        if self._newest is not None and points[-1:] != [self._newest]:
            points.append(self._newest)
        return [json_number(loss) for _, loss in points]

    def _thin(self) -> None:
        """Half of them go when there are too many: those that are nearest to the one before."""
        while len(self._points) > 2 * SHOWN:
            span = self._points[-1][0] - self._points[0][0]
            self._stride = max(self._stride + 1, span // SHOWN)
            kept = self._points[:1]
            for one in self._points[1:]:
                if one[0] >= kept[-1][0] + self._stride:
                    kept.append(one)
            self._points = kept
