"""What a session has pushed in all: its totals, its current step and the last value of each key.

Totals are kept here and not in the daemon, so that a daemon that was restarted or away misses nothing of them.
"""

from __future__ import annotations

from math import fsum, isfinite
from typing import TYPE_CHECKING, Any

from trackside.totals.checkpoints import KIND, CheckpointCounter
from trackside.totals.flops import NONE
from trackside.totals.histogram import empty, observe
from trackside.totals.phases import PhaseTimes
from trackside.wire import DataWaits, Device, Histogram, Totals

if TYPE_CHECKING:
    from collections.abc import Collection

    from trackside.totals.flops import Flops
    from trackside.totals.phases import Mark
    from trackside.wire import Clock, TrainingEvent

KEYS = 1024
"""So many keys are remembered one by one, as many as a daemon shows of a run and a few more; the others still travel."""

KEY_LENGTH = 256
STEP_KEYS = 65_536
_INT64 = 2**63


class Deferred:
    """Stands in the place of the step in all rows of one push, some of whose values come later than the others.

    Attributes:
        step: As the user gave it; from the first row on the one that the push was counted in. None after a first row
            that was dropped: then it is the current one.
        keys: All that were pushed; they count as present in the step from the first row on.
        resolved: The first row has been taken or dropped, so that any other is late.
    """

    __slots__ = ("keys", "resolved", "step")

    def __init__(self, step: int | None, keys: tuple[str, ...]) -> None:
        self.step, self.keys, self.resolved = step, keys, False


class SessionTotals:
    """Sees every push of a session once, in order.

    Args:
        began: When the session did, in nanoseconds of the monotonic clock.
        flops: What a step or a token takes.

    Attributes:
        totals: What is sent with each batch.
        last: The last value of each key, of the first `KEYS` that are not longer than `KEY_LENGTH` characters.
        step: The current step; None before the first push.
        pushed_at: Monotonic nanoseconds of the last push; None before the first.
        times: The seconds by phase.
        refused: What people are to be told once of values that could not be kept, by key.
    """

    def __init__(self, began: int = 0, flops: Flops = NONE) -> None:
        self.totals = Totals()
        self.last: dict[str, float] = {}
        self.step: int | None = None
        self.pushed_at: int | None = None
        self.times = PhaseTimes(began)
        self.refused: dict[str, str] = {}
        self._flops = flops
        self._saving = CheckpointCounter()
        self._highest = 0
        self._began = self._paused = 0
        self._in_step: set[str] = set()

    def take(
        self, time: int, step: int | Deferred | None, values: dict[str, float]
    ) -> tuple[int, dict[str, float]] | None:
        """Count one push, and return its step and those of its values that are kept; None when nothing of it is.

        Args:
            time: Nanoseconds of the monotonic clock.
            step: As the user gave it; None joins the current step, or is the next when a key was already in it. A
                `Deferred` that was seen before marks a late row, of whose values only the amounts are counted.
            values: Numbers; what is no float64, or a negative or non-finite amount, is dropped and counted.
        """
        place = self._place(time, step) if isinstance(step, Deferred) else self._enter(time, step, values)
        if not -_INT64 <= place < _INT64:
            self._refuse("step", "is beyond 64 bits", len(values))
            return None
        values = self._weigh(values)
        if values.keys() <= self.last.keys():
            self.last.update(values)
        else:
            self.last.update((key, number) for key, number in values.items() if _has_room(self.last, key))
        return place, values

    def mark(self, time: int, mark: Mark) -> None:
        """Follow the training into a phase or out of it."""
        saved = self.times.saves
        self.times.take(time, mark)
        if saved != self.times.saves:
            self._save(time, mark)
        if mark.waited is not None:
            self._wait(max(0, mark.waited) / 1e9, first=mark.first)

    def work(self, done: Device) -> None:
        """Count seconds by phase that GPUs have worked, and take how their memory is now."""
        device = self.totals.device = self.totals.device or Device()
        for phase, seconds in done.phases.items():
            device.phases[phase] = device.phases.get(phase, 0.0) + seconds
        device.memory |= done.memory

    def hear(self, event: TrainingEvent) -> None:
        """Follow what the training says has happened."""
        if event.kind == KIND:
            self._saving.told(event)
            self.totals.saves = self._saving.totals

    def untold(self, *, ended: bool = False) -> TrainingEvent | None:
        """An event for a checkpoint that the training has written and not told of, once it is at another step or has *ended*."""
        return self._saving.untold(None if ended else self.step)

    def reckon(self, clock: Clock) -> None:
        """Bring up to the moment of a message what time changes, and what is told by its clock."""
        if self.times.used:
            self.times.advance(clock.monotonic)
            self.totals.phases = self.times.seconds
        self._saving.date(clock)
        if self._flops != NONE:
            self.totals.device = self.totals.device or Device()
            self.totals.device.flops = self._flops.done(self.totals.steps, self.totals.tokens)
            self.totals.device.peak_flops = self._flops.peak

    def _save(self, time: int, mark: Mark) -> None:
        """A checkpoint begins to be written, or is."""
        if self.times.saves:
            self._saving.begins(time)
        else:
            self._saving.ends(time, self.step, failed=mark.failed)
            self.totals.saves = self._saving.totals

    def _wait(self, seconds: float, *, first: bool) -> None:
        waits: Histogram
        waits = self.totals.data_wait = self.totals.data_wait or empty(DataWaits)
        if first:
            waits = self.totals.data_wait.first = self.totals.data_wait.first or empty(Histogram)
        observe(waits, seconds)

    def _place(self, time: int, deferred: Deferred) -> int:
        """The step of a row of a push that has several."""
        if not deferred.resolved:
            deferred.step, deferred.resolved = self._enter(time, deferred.step, deferred.keys), True
        elif deferred.step is None:
            deferred.step = self.step or 0
        return deferred.step

    def _enter(self, time: int, step: int | None, keys: Collection[str]) -> int:
        """Count a push of some *keys*, and make its step the current one; which it is."""
        self.totals.pushes += 1
        self.pushed_at = time
        step = self._resolve(step, keys)
        if -_INT64 <= step < _INT64:
            self._advance(time, step)
            if len(self._in_step) < STEP_KEYS:
                self._in_step.update(keys)
        return step

    def _resolve(self, step: int | None, keys: Collection[str]) -> int:
        if step is not None:
            return step
        if self.step is None:
            return 0
        return self.step if self._in_step.isdisjoint(keys) else self.step + 1

    def _advance(self, time: int, step: int) -> None:
        if step == self.step:
            return
        if self.step is None:
            self.totals.steps, self._highest = 1, step
        elif step > self.step:
            spent = time - self._began - (self.times.paused - self._paused)
            seconds = max(0, spent) / 1e9  # of two threads, one may overtake
            self.totals.step_duration = self.totals.step_duration or empty(Histogram)
            observe(self.totals.step_duration, seconds, step - self.step)
        if step > self._highest:
            self.totals.steps = min(self.totals.steps + step - self._highest, _INT64 - 1)
            self._highest = step
        self.step, self._began, self._paused = step, time, self.times.paused
        self.totals.paused = self._paused / 1e9
        self._in_step.clear()

    def _weigh(self, values: dict[str, float]) -> dict[str, float]:
        """The values without those that are refused; what is to be counted in them is."""
        try:
            plain = isfinite(fsum(values.values())) and "samples" not in values and "tokens" not in values
        except (OverflowError, ValueError):  # a huge int, a huge sum, infinities of both signs
            plain = False
        return values if plain else self._sort_out(values)

    def _refuse(self, key: str, reason: str, values: int = 1) -> None:
        self.totals.dropped += values
        if len(self.refused) < KEYS:
            self.refused.setdefault(key, f"{key[:KEY_LENGTH]}: {reason}; it is dropped, and so are further ones")

    def _sort_out(self, values: dict[str, float]) -> dict[str, float]:
        """The slow way, for pushes that hold something to count or to refuse."""
        kept = {}
        for key, value in values.items():
            try:
                number = float(value)
            except OverflowError:
                self._refuse(key, "is beyond a float's range")
                continue
            if key in {"samples", "tokens"}:
                if not isfinite(number) or number < 0:
                    self._refuse(key, f"is an amount, finite and not negative, and {number} is none")
                    continue
                setattr(self.totals, key, (getattr(self.totals, key) or 0.0) + number)
            elif not isfinite(number) and _has_room(self.totals.nonfinite, key):
                self.totals.nonfinite[key] = self.totals.nonfinite.get(key, 0) + 1
            kept[key] = number
        return kept


def _has_room(known: dict[str, Any], key: str) -> bool:
    return key in known or (len(known) < KEYS and len(key) <= KEY_LENGTH)
