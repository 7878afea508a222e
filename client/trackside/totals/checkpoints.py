"""Checkpoints as a session counts them: by the phases in which they are written, and by the events that tell of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from trackside.environment.config import as_json
from trackside.totals.histogram import empty, observe
from trackside.wire import CheckpointTotals, Histogram, TrainingEvent

if TYPE_CHECKING:
    from trackside.wire import Clock

KIND = "checkpoint"
"""The event's."""

_INT64 = 2**63


class CheckpointCounter:
    """The checkpoints of a session. What a phase and an event of the same step tell of is one.

    Attributes:
        totals: None before the first checkpoint.
    """

    def __init__(self) -> None:
        self.totals: CheckpointTotals | None = None
        self._step: int | None = None
        self._phases = self._events = self._durations = 0
        self._began: int | None = None
        self._ended: tuple[int, float] | None = None
        self._at: int | None = None

    def begins(self, time: int) -> None:
        """One begins to be written, at so many nanoseconds of the monotonic clock."""
        self._began = time if self._began is None else self._began

    def ends(self, time: int, step: int | None, *, failed: bool) -> None:
        """It is written; one that has *failed* is none."""
        began, self._began = self._began, None
        if failed or began is None:
            return
        self._enter(step)
        self._phases += 1
        seconds = max(0, time - began) / 1e9
        self._ended = (time, seconds)
        self._count(time, more=self._phases > self._events)
        if self._durations < self._phases:
            self._observe(seconds)

    def told(self, event: TrainingEvent) -> None:
        """The training says that there is one: with ``bytes`` and ``seconds`` if it likes."""
        self._enter(event.step)
        self._events += 1
        more = self._events > self._phases
        self._count(event.time, more=more)
        fields = _fields(event)
        size, seconds = fields.get("bytes"), fields.get("seconds")
        if self.totals is not None and isinstance(size, int | float) and 0 <= size < _INT64:
            self.totals.bytes = int(size)
        if more and self._began is None and isinstance(seconds, int | float) and 0 <= seconds < _INT64:
            self._observe(float(seconds))

    def untold(self, step: int | None) -> TrainingEvent | None:
        """Once the training is at another *step*: an event for the checkpoint of which it has told none."""
        if self._ended is None or step == self._step is not None:
            return None
        (time, seconds), self._ended = self._ended, None
        if self._events:
            return None
        return TrainingEvent(KIND, time, self._step, as_json({"seconds": round(seconds, 3)}, "a checkpoint"))

    def date(self, clock: Clock) -> None:
        """Say of the last one when it was, by the *clock* of the message that tells it."""
        if self.totals is not None and self._at is not None:
            self.totals.at, self._at = max(0.0, clock.wall_seconds(self._at)), None

    def _enter(self, step: int | None) -> None:
        if step != self._step:
            self._step = step
            self._phases = self._events = self._durations = 0

    def _count(self, time: int, *, more: bool) -> None:
        self.totals = self.totals or CheckpointTotals()
        self.totals.count += more
        self._at = time

    def _observe(self, seconds: float) -> None:
        self._durations += 1
        if self.totals is not None:
            self.totals.duration = self.totals.duration or empty(Histogram)
            observe(self.totals.duration, seconds)


def _fields(event: TrainingEvent) -> dict[str, Any]:
    try:
        found = json.loads(event.fields or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
