"""Count what a session has pushed: its totals, its checkpoints, its current step and the last value of each key.

The client keeps the totals, so that a daemon that was restarted or absent loses none of them.
"""

import json
from bisect import bisect_left
from collections.abc import Collection
from math import fsum, isfinite
from typing import Any, NamedTuple, TypeVar

from trackside.buckets import duration_index
from trackside.environment.config import as_json
from trackside.rl_keys import AMOUNT_KEYS
from trackside.totals.flops import NONE, Flops
from trackside.totals.phases import SYNC, PhaseMark, PhaseTimes
from trackside.totals.recent_batches import RecentBatches
from trackside.wire import (
    DURATION_BUCKETS,
    CheckpointTotals,
    Clock,
    DataWaits,
    Device,
    Histogram,
    Totals,
    TrainingEvent,
)

MAX_INT64 = 2**63 - 1  # limit of a count: it travels as int64

H = TypeVar("H", bound=Histogram)


def empty(kind: type[H]) -> H:
    """Return a histogram of class *kind* without observations."""
    return kind([0] * (len(DURATION_BUCKETS) + 1), 0.0)


def observe(durations: Histogram, seconds: float, times: int = 1) -> None:
    """Add *times* observations that took *seconds* together."""
    bucket = bisect_left(DURATION_BUCKETS, seconds / times)  # bounds are inclusive, as `le` in Prometheus
    durations.counts[bucket] = min(durations.counts[bucket] + times, MAX_INT64)
    durations.sum += seconds
    index = duration_index(seconds / times)
    if index is not None:
        durations.fine[index] = min(durations.fine.get(index, 0) + times, MAX_INT64)


KIND = "checkpoint"  # kind of the event that reports a checkpoint


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


# Limit of keys with a last value: a few more than a daemon shows of a run. Values of further keys are still sent.
KEYS = 1024

KEY_LENGTH = 256  # limit of such a key, in characters
STEP_KEYS = 65_536  # limit of keys of a step that are remembered, to find the step of a push without one

_INT64 = 2**63

_COUNTED = frozenset(("samples", "tokens", *AMOUNT_KEYS))  # keys whose values are summed


class Deferred:
    """The step of a push whose values arrive in several rows; it replaces the step in all of them.

    Attributes:
        step: The user's step; from the first row on, the step that the push was counted in. None if the first row was
            dropped: then the current step is used.
        keys: All pushed keys. They count as present in the step from the first row on.
        aside: The step is one of another count, as of epochs, and never becomes the current step.
        ends: Whether the step ends with the push, which joins the current one as long as that has not ended; None for a push
            that begins the next step if a key is in the current one already.
        resolved: The first row was counted or dropped, so that any other row is late; always true for *aside*.
    """

    __slots__ = ("aside", "ends", "keys", "resolved", "step")

    def __init__(
        self, step: int | None, keys: tuple[str, ...], *, aside: bool = False, ends: bool | None = None
    ) -> None:
        self.step = step
        self.keys = keys
        self.ends = ends
        self.aside = self.resolved = aside


class Position(NamedTuple):
    """The current, first and highest step of a training, as in `SessionTotals`, and what decides the next one."""

    step: int | None
    first: int | None
    highest: int
    began: int  # begin of the current step, in monotonic nanoseconds, later by the pauses in it
    keys: set[str]  # keys of the current step
    has_ended: bool  # the current step has ended


class SessionTotals:
    """Counts every push of a session once, in order.

    Args:
        began: Begin of the session, in monotonic nanoseconds.
        flops: Operations of a step or a token.

    Attributes:
        totals: Totals that are sent with each batch.
        last: Last value of each key, of the first `KEYS` keys of at most `KEY_LENGTH` characters.
        step: Current step; None before the first push.
        first: First step; None before it.
        highest: Highest step.
        pushed_at: Monotonic nanoseconds of the last push; None before the first.
        phases: Seconds by phase.
        batches: The batches of the last steps.
        warnings: Warnings about dropped values, to be logged once, by key.
        is_urgent: A key that was finite before has become NaN or infinite; the reader resets it.
    """

    def __init__(self, began: int = 0, flops: Flops = NONE) -> None:
        self.totals = Totals()
        self.last: dict[str, float] = {}
        self.step: int | None = None
        self.first: int | None = None
        self.highest = 0
        self.pushed_at: int | None = None
        self.phases = PhaseTimes(began)
        self.batches = RecentBatches()
        self.warnings: dict[str, str] = {}
        self.is_urgent = False
        self._flops = flops
        self._checkpoints = CheckpointCounter()
        self._began = 0
        self._paused = 0
        self._in_step: set[str] = set()
        self._has_ended = False

    @property
    def position(self) -> Position:
        """The position of the training now."""
        began = self._began + self.phases.paused - self._paused
        return Position(self.step, self.first, self.highest, began, self._in_step, self._has_ended)

    @classmethod
    def resumed(cls, totals: Totals, position: Position) -> "SessionTotals":
        """Return the counts of another session from its totals and its position, to count what follows."""
        counts = cls()
        counts.totals = totals
        counts.step, counts.first, counts.highest, counts._began, counts._in_step, counts._has_ended = position
        return counts

    def accept(
        self, time: int, step: int | Deferred | None, values: dict[str, float]
    ) -> tuple[int, dict[str, float]] | None:
        """Count one push, and return its step and the values that are kept; None if none is.

        Args:
            time: Monotonic nanoseconds.
            step: The user's step. None joins the current step, or begins the next one if a key was already in it. A
                resolved `Deferred` marks a late row, of whose values only the amounts are counted.
            values: Numbers. A number beyond float64, and a negative or non-finite amount, is dropped and counted.
        """
        place = self._place(time, step) if isinstance(step, Deferred) else self._enter(time, step, values)
        if not -_INT64 <= place < _INT64:
            self.refuse("step", "is beyond 64 bits", len(values))
            return None
        values = self._weigh(values)
        if values.keys() <= self.last.keys():
            self.last.update(values)
        else:
            self.last.update((key, number) for key, number in values.items() if _has_room(self.last, key))
        return place, values

    def mark(self, time: int, mark: PhaseMark) -> None:
        """Count the begin or end of a phase, at *time* in monotonic nanoseconds."""
        if mark.batches:
            self.batches.arrived(time, mark.batches)
        was_saving = self.phases.is_saving
        applied = self.phases.accept(time, mark)
        if was_saving != self.phases.is_saving:
            self._count_checkpoint(time, mark)
        if mark.waited is not None and (applied or not mark.automatic):  # else the user times the same wait
            self._wait(max(0, mark.waited) / 1e9, first=mark.first)

    def add_device(self, done: Device) -> None:
        """Add the seconds by phase that GPUs have worked, and store their memory."""
        device = self.totals.device = self.totals.device or Device()
        for phase, seconds in done.phases.items():
            device.phases[phase] = device.phases.get(phase, 0.0) + seconds
        self.phases.wait_on_device(done.phases.get(SYNC, 0.0))
        device.memory |= done.memory

    def handle_event(self, event: TrainingEvent) -> None:
        """Count an event of the training: a checkpoint."""
        if event.kind == KIND:
            self._checkpoints.handle_event(event)
            self.totals.saves = self._checkpoints.totals

    def unreported_checkpoint(self, *, ended: bool = False) -> TrainingEvent | None:
        """Return an event for a checkpoint that none has reported, once the training is at another step or *ended*."""
        return self._checkpoints.unreported(None if ended else self.step)

    def update(self, clock: Clock) -> None:
        """Update what depends on time, up to the moment of a message."""
        if self.phases.is_used:
            self.phases.advance(clock.monotonic)
            self.totals.phases = self.phases.seconds
        self._checkpoints.set_time(clock)
        if self._flops != NONE:
            self.totals.device = self.totals.device or Device()
            self.totals.device.flops = self._flops.done(self.totals.steps, self.totals.tokens)
            self.totals.device.peak_flops = self._flops.peak

    def _count_checkpoint(self, time: int, mark: PhaseMark) -> None:
        if self.phases.is_saving:
            self._checkpoints.begins(time)
        else:
            self._checkpoints.ends(time, self.step, failed=mark.failed)
            self.totals.saves = self._checkpoints.totals

    def _wait(self, seconds: float, *, first: bool) -> None:
        waits: Histogram
        waits = self.totals.data_wait = self.totals.data_wait or empty(DataWaits)
        if first:
            waits = self.totals.data_wait.first = self.totals.data_wait.first or empty(Histogram)
        observe(waits, seconds)

    def _place(self, time: int, deferred: Deferred) -> int:
        """Return the step of a row of a push with several rows."""
        if not deferred.resolved:
            deferred.step = self._enter(time, deferred.step, deferred.keys, deferred.ends)
            deferred.resolved = True
            self._has_ended = self._has_ended or bool(deferred.ends)
        elif deferred.step is None:
            deferred.step = self.step or 0
        return deferred.step

    def _enter(self, time: int, step: int | None, keys: Collection[str], ends: bool | None = None) -> int:
        """Count a push of some *keys*, make its step the current one, and return it."""
        self.totals.pushes += 1
        self.pushed_at = time
        step = self._resolve(step, keys, ends)
        if -_INT64 <= step < _INT64:
            self._advance(time, step)
            if len(self._in_step) < STEP_KEYS:
                self._in_step.update(keys)
        return step

    def _resolve(self, step: int | None, keys: Collection[str], ends: bool | None) -> int:
        if step is not None:
            return step
        if self.step is None:
            return 0
        joins = not self._has_ended and (ends is not None or self._in_step.isdisjoint(keys))
        return self.step if joins else self.step + 1

    def _advance(self, time: int, step: int) -> None:
        if step == self.step:
            return
        self.batches.step_began(time, step)
        if self.step is None:
            self.totals.steps, self.highest, self.first = 1, step, step
        elif step > self.step:
            spent = time - self._began - (self.phases.paused - self._paused)
            seconds = max(0, spent) / 1e9  # of two pushing threads, one may overtake the other
            self.totals.step_duration = self.totals.step_duration or empty(Histogram)
            observe(self.totals.step_duration, seconds, step - self.step)
        if step > self.highest:
            # A training that pushes each 10 steps, at 10 first, has done these 10. One that resumes at 1000 has not.
            lowest = self.highest if self.highest == self.first else 0
            before = lowest - 1 if 1 < lowest <= step - lowest else 0
            self.totals.steps = min(self.totals.steps + before + step - self.highest, _INT64 - 1)
            self.highest = step
        self.step, self._began, self._paused = step, time, self.phases.paused
        self.totals.paused = self._paused / 1e9
        self._in_step.clear()
        self._has_ended = False

    def _weigh(self, values: dict[str, float]) -> dict[str, float]:
        """Return the values without those that are refused, and count amounts and non-finite values."""
        try:
            # The sum is finite only if all values are: one call in C for the usual push.
            plain = isfinite(fsum(values.values())) and _COUNTED.isdisjoint(values)
        except (OverflowError, ValueError):  # a huge int, a huge sum, infinities of both signs
            plain = False
        return values if plain else self._sort_out(values)

    def refuse(self, key: str, reason: str, values: int = 1) -> None:
        """Count dropped values of a key, and add a warning with the reason."""
        self.totals.dropped += values
        if len(self.warnings) < KEYS:
            self.warnings.setdefault(key, f"{key[:KEY_LENGTH]}: {reason}; it is dropped, and so are further ones")

    def _sort_out(self, values: dict[str, float]) -> dict[str, float]:
        """Handle a push with something to count or to refuse, value by value."""
        kept = {}
        for key, value in values.items():
            try:
                number = float(value)
            except OverflowError:
                self.refuse(key, "is beyond a float's range")
                continue
            if key in {"samples", "tokens"}:
                if not isfinite(number) or number < 0:
                    self.refuse(key, f"{number} is not a finite, non-negative amount")
                    continue
                setattr(self.totals, key, (getattr(self.totals, key) or 0.0) + number)
            elif key in AMOUNT_KEYS and isfinite(number) and number >= 0:
                device = self.totals.device = self.totals.device or Device()
                quantity = AMOUNT_KEYS[key]
                device.amounts[quantity] = device.amounts.get(quantity, 0.0) + number
            elif not isfinite(number) and _has_room(self.totals.nonfinite, key):
                self.totals.nonfinite[key] = self.totals.nonfinite.get(key, 0) + 1
                # Not for each of many: all ranks of a job that diverges push NaN at each step.
                self.is_urgent = self.is_urgent or isfinite(self.last.get(key, 0.0))
            kept[key] = number
        return kept


def _has_room(keys: dict[str, Any], key: str) -> bool:
    return key in keys or (len(keys) < KEYS and len(key) <= KEY_LENGTH)
