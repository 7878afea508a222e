"""Count a session's checkpoints, by the phases in which they are written and by the events that report them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from trackside.environment.config import as_json
from trackside.totals.histogram import empty, observe
from trackside.wire import CheckpointTotals, Histogram, TrainingEvent

if TYPE_CHECKING:
    from trackside.wire import Clock

KIND = "checkpoint"  # kind of the event that reports a checkpoint

_INT64 = 2**63


class CheckpointCounter:
    """The checkpoints of a session. A phase and an event of the same step are one checkpoint.

    So are they and all events of a step that were found without a change of the code, with ``auto`` in their fields.

    Attributes:
        totals: Their totals; None before the first checkpoint.
    """

    def __init__(self) -> None:
        self.totals: CheckpointTotals | None = None
        self._step: int | None = None
        self._phases = 0
        self._events = 0
        self._found = False
        self._durations = 0
        self._began: int | None = None
        self._ended: tuple[int, float] | None = None
        self._at: int | None = None

    def begins(self, time: int) -> None:
        """Record that the writing of a checkpoint begins, at *time* in monotonic nanoseconds."""
        self._began = time if self._began is None else self._began

    def ends(self, time: int, step: int | None, *, failed: bool) -> None:
        """Record that a checkpoint is written; one that has *failed* does not count."""
        began, self._began = self._began, None
        if failed or began is None:
            return
        self._enter(step)
        counted = self._counted
        self._phases += 1
        seconds = max(0, time - began) / 1e9
        self._ended = (time, seconds)
        self._count(time, more=self._counted > counted)
        if self._durations < self._phases:  # else an event of this step has stated the duration
            self._observe(seconds)

    def handle_event(self, event: TrainingEvent) -> None:
        """Count a checkpoint that an event reports, with its optional fields ``bytes`` and ``seconds``."""
        self._enter(event.step)
        fields, counted = _fields(event), self._counted
        if fields.get("auto"):
            self._found = True
        else:
            self._events += 1
        self._count(event.time, more=self._counted > counted)
        size, seconds = fields.get("bytes"), fields.get("seconds")
        if self.totals is not None and isinstance(size, int | float) and 0 <= size < _INT64:
            self.totals.bytes = int(size)
        if (
            self._durations < self._counted
            and self._began is None
            and isinstance(seconds, int | float)
            and 0 <= seconds < _INT64
        ):
            self._observe(float(seconds))

    def unreported(self, step: int | None) -> TrainingEvent | None:
        """Return an event for a checkpoint that no event has reported, once the training is at another *step*."""
        if self._ended is None or step == self._step is not None:
            return None
        (time, seconds), self._ended = self._ended, None
        if self._events or self._found:
            return None
        return TrainingEvent(KIND, time, self._step, as_json({"seconds": round(seconds, 3)}, "a checkpoint"))

    def set_time(self, clock: Clock) -> None:
        """Set the time of the last checkpoint, by the *clock* of the message that carries it."""
        if self.totals is not None and self._at is not None:
            self.totals.at, self._at = max(0.0, clock.wall_seconds(self._at)), None

    @property
    def _counted(self) -> int:
        """The number of checkpoints of this step."""
        return max(self._phases, self._events, self._found)

    def _enter(self, step: int | None) -> None:
        if step != self._step:
            self._step = step
            self._phases = self._events = self._durations = 0
            self._found = False

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
        fields = json.loads(event.fields or "{}")
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}
