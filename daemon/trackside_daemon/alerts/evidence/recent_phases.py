"""Recent seconds by phase of all ranks, which the history stores only as sums of whole attempts."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from trackside_daemon.causes.level import BEFORE
from trackside_daemon.history.read.resources import Resource
from trackside_daemon.model.families import training as f

if TYPE_CHECKING:
    from trackside_daemon.model.state import State

INTERVAL = 5.0  # seconds between two recorded values
SERIES = 4096  # most series; phases of more ranks are not recorded


class RecentPhases:
    """Values of the last half an hour, recorded and read by one thread.

    Args:
        state: Newest values of all families.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._points: dict[tuple[str, ...], deque[tuple[float, float]]] = {}

    def record(self, now: float, wall: float) -> None:
        """Record the present values; *now* is in monotonic and *wall* in Unix seconds."""
        (values,) = self._state.values(now, f.PHASE_SECONDS)
        # Series that are gone are forgotten, so that ended runs do not accumulate.
        self._points = {labels: points for labels, points in self._points.items() if labels in values}
        for labels, value in values.items():
            if isinstance(value, float) and (labels in self._points or len(self._points) < SERIES):
                points = self._points.setdefault(labels, deque(maxlen=int(BEFORE / INTERVAL)))
                points.append((wall, value))

    def of(self, run: str) -> list[Resource]:
        """Return the phases of a run, by its name."""
        names = f.PHASE_SECONDS.labels
        return [
            Resource(f.PHASE_SECONDS.name, dict(zip(names, labels, strict=True)), list(points))
            for labels, points in self._points.items()
            if labels[0] == run
        ]
