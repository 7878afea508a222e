"""Detect a step that takes much longer than those before it, except for scheduled pauses."""

from __future__ import annotations

from collections import deque
from math import inf, isfinite
from typing import TYPE_CHECKING, NamedTuple

from trackside.totals.phases import PAUSES
from trackside_daemon.detectors.base import Detection, slower
from trackside_daemon.detectors.schedule import ALIKE, CHANCE, CHANCE_BY_TIME, Schedule
from trackside_daemon.model.robust import Window
from trackside_daemon.model.text import duration, factor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trackside_daemon.detectors.base import Column, Context, SlowSteps

BEFORE = 50  # recent samples that a step is compared with: at most BEFORE, at least ENOUGH
ENOUGH = 16

# Thresholds for remembering a pause, lower than those for reporting, so that a pause near the limit is remembered: part of
# the excess, and robust standard deviations.
LEARNT_PART, LEARNT_SCALES = 0.8, 3.0

# Relative resolution of logged times: to the millisecond or to a per mille. Equal durations differ by this much.
QUANTUM = 1e-3

APART = 3  # slow steps that are at most so many samples apart are one problem, or one pause
CALM = 20  # samples without a slow step that end the alert
USUAL = 1000  # samples after which slow steps are the new normal

# After USED_TO reported slow steps among LATELY samples, none shorter by more than `ALIKE`, another is only info.
USED_TO, LATELY = 3, 10_000

WORTH = 60.0  # seconds lost by one step from which it is a warning; less is info

SPAN = 1000.0  # seconds of the run after which the floor of one second is a thousandth of its time, and grows


class Slow(NamedTuple):
    """A slow step: its duration and the usual one in seconds; *derived* if durations come from the times of pushes."""

    step: int
    time: float
    seconds: float
    usual: float
    derived: bool = False

    @property
    def excess(self) -> float:
        """Duration beyond the usual one, as a fraction of that."""
        return self.seconds / self.usual - 1

    def evidence(self) -> dict[str, float]:
        """Return the evidence for the alert."""
        return slower(self.seconds, self.usual, self.time - self.seconds)

    def text(self) -> str:
        """Return the description for the alert."""
        what = f"step {self.step:,} took {duration(self.seconds)}"
        if self.derived:  # a script that pushes at the end of a step spent this time in the next step
            what = f"{duration(self.seconds)} passed between the pushes of step {self.step:,} and the next"
        return (
            f"{what}, {factor(self.seconds / self.usual)} the {duration(self.usual)} of the steps before: "
            f"{duration(self.seconds - self.usual)} lost, and no schedule of pauses explains it"
        )


class SlowStep:
    """`SlowStep`: steps that take more than *ratio* times the recent median.

    They must also lie *scales* robust deviations above it and lose *lost* seconds or more, and as many more for each
    `SPAN` seconds of the run, up to `WORTH`: on a noisy host, the longer steps of a long run are only counted.
    """

    alerts: tuple[str, ...] = ("SlowStep",)

    def __init__(self, *, ratio: float = 1.5, scales: float = 9.0, lost: float = 0.0) -> None:
        self._ratio = ratio
        self._scales = scales
        self._learnt = 1 + LEARNT_PART * (ratio - 1)
        self._learnt_scales = min(LEARNT_SCALES, scales)
        self._lost = lost
        self._window = Window(BEFORE)
        self._by_step: Schedule | None = None
        self._by_time: Schedule | None = None
        self._step = 0
        self._unit = 1
        self._index = 0
        self._last_slow = -APART - 1
        self._pause = (-APART - 1, 0.0)
        self._usual: float | None = None
        self._reported_at = 0
        self._reported: deque[tuple[int, float]] = deque(maxlen=2 * USED_TO)
        self._calm = 0
        self._ran = 0.0

    def evaluate(self, column: Column, context: Context) -> Iterator[Detection]:
        """Yield what the next durations show, in seconds per step."""
        if context.phase in PAUSES:
            return
        for at, (step, time, seconds) in enumerate(zip(*column, strict=True)):
            if 0 < seconds < inf:
                self._advance(step, time)
                if len(self._window) >= ENOUGH and seconds > self._learnt * (usual := self._window.median()):
                    yield from self._exceeds(at, Slow(step, time, seconds, usual, context.derived), context.slow)
                if self._usual is not None:
                    yield from self._watch(at, step, seconds)
                self._window.add(seconds)
                self._ran += seconds

    def _advance(self, step: int, time: float) -> None:
        if self._by_step is None:
            self._by_step = Schedule(step, chance=CHANCE)
        elif step < self._step:
            self._by_step.forget_from(step)
        elif step > self._step:
            self._unit = step - self._step
        if self._by_time is None and isfinite(time):
            self._by_time = Schedule(time, chance=CHANCE_BY_TIME)
        self._step = step
        self._index += 1

    def _exceeds(self, at: int, slow: Slow, counted: SlowSteps) -> Iterator[Detection]:
        scales = (slow.seconds - slow.usual) / (self._window.spread() + QUANTUM * slow.usual)
        if scales <= self._learnt_scales:
            return
        exceeds = slow.seconds > self._ratio * slow.usual and scales > self._scales
        if exceeds and not self._due(slow):
            counted.count += 1
            counted.seconds += slow.seconds - slow.usual
            if self._is_slow(slow.seconds, slow.usual) and not self._crowded(slow):
                yield from self._report(at, slow)
        if self._by_step is not None:
            self._by_step.note(slow.step, slow.excess)
        if self._by_time is not None and isfinite(slow.time):
            self._by_time.note(slow.time, slow.excess)

    def _report(self, at: int, slow: Slow) -> Iterator[Detection]:
        if self._index - self._last_slow > APART:
            worth = slow.seconds - slow.usual >= WORTH and not self._is_used_to(slow.excess)
            yield Detection("SlowStep", "warning" if worth else "info", at, slow.text(), evidence=slow.evidence())
            self._reported.append((self._index, slow.excess))
            if self._usual is None:
                self._usual, self._reported_at = slow.usual, self._index
        self._last_slow = self._index

    def _is_used_to(self, excess: float) -> bool:
        """Return whether slow steps of this length were reported often enough."""
        since = self._index - LATELY
        return sum(at > since and ALIKE * was >= excess for at, was in self._reported) >= USED_TO

    def _is_slow(self, seconds: float, usual: float) -> bool:
        floor = self._lost * min(WORTH, max(1.0, self._ran / SPAN))
        return seconds > self._ratio * usual and seconds - usual >= floor

    def _crowded(self, slow: Slow) -> bool:
        return self._by_step is not None and self._by_step.crowded(slow.step, self._unit)

    def _due(self, slow: Slow) -> bool:
        """Return whether this is a scheduled pause, or one of the slow steps right after it."""
        paused_at, paused = self._pause
        if self._index - paused_at <= APART and slow.excess <= paused:
            return True
        due = self._by_step is not None and self._by_step.expects(slow.step, slow.excess, self._unit)
        if not due and self._by_time is not None and isfinite(slow.time):
            due = self._by_time.expects(slow.time, slow.excess, slow.usual * self._unit)
        if due:
            self._pause = (self._index, slow.excess)
        return due

    def _watch(self, at: int, step: int, seconds: float) -> Iterator[Detection]:
        usual = self._usual or 0.0
        self._calm = 0 if self._is_slow(seconds, usual) else self._calm + 1
        if self._calm >= CALM:
            text = f"steps take {duration(self._window.median())} again at step {step:,}"
        elif self._index - self._reported_at >= USUAL:
            text = f"steps have taken {duration(self._window.median())} for {USUAL:,} samples: this is the new normal"
        else:
            return
        self._usual = None
        yield Detection("SlowStep", "warning", at, text, over=True)
