"""The stalls that detectors have found, until training applies them in its next tick."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trackside_daemon.model.stall import Stall


class CurrentStalls:
    """The current stalls by run and attempt, also of runs that are not open; *restored* are those of an earlier daemon."""

    def __init__(self, restored: Iterable[Stall] = ()) -> None:
        self._current: dict[tuple[str, int], Stall] = {}
        self._new: deque[Stall] = deque(restored)
        self.apply()

    def accept(self, stalls: Iterable[Stall]) -> None:
        """Queue what detectors have found. Any thread may call it."""
        self._new.extend(stalls)  # without a lock: each append to a deque is atomic

    def apply(self) -> set[tuple[str, int]]:
        """Apply what was queued; return the runs and attempts whose stalls have changed."""
        changed = set()
        while self._new:
            stall = self._new.popleft()
            key = (stall.run, stall.attempt)
            if stall.is_over:
                self._current.pop(key, None)
            else:
                self._current[key] = stall
            changed.add(key)
        return changed

    def get(self, run: str, attempt: int) -> Stall | None:
        """Return the stall of an attempt; None if no rank of it is stalled."""
        return self._current.get((run, attempt))
