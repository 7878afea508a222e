"""A step that takes much longer than those before it, but for pauses that come by a schedule."""

from __future__ import annotations

from collections import deque
from math import inf, isfinite
from typing import TYPE_CHECKING, NamedTuple

from trackside.totals.phases import PAUSES
from trackside_daemon.detectors.base import Detection
from trackside_daemon.detectors.schedule import ALIKE, CHANCE, CHANCE_BY_TIME, Schedule
from trackside_daemon.detectors.window import Window
from trackside_daemon.detectors.wording import factor, lasted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trackside_daemon.detectors.base import Column, Context

BEFORE = 50
"""Samples of late that a step is compared with, and how many of them there must be at least."""
ENOUGH = 16

LEARNT, LEARNT_PART = 1.4, 0.8
LEARNT_SCALES = 3.0
"""What is remembered as a pause is a little less than what is told, so that one at the edge is known."""

QUANTUM = 1e-3
"""Times are often logged to the millisecond or to a per mille: equal ones still differ by so much."""

APART = 3
"""Samples: slow steps that follow each other so closely are one trouble, or one pause."""

CALM = 20
"""Samples without a slow one after which it is over."""

USUAL = 1000
"""Samples after which slow steps are what is usual now."""

USED_TO, LATELY = 3, 10_000
"""So many that were told among so many samples, none of them shorter by more than `ALIKE`: one more is information only,
since whoever was to know of them does.
"""

WORTH = 1.0
"""Seconds lost by one step that are worth a person's attention; less is information."""


class Slow(NamedTuple):
    """A slow step: how long it took and how long those before it, in seconds; *derived* from when steps were pushed."""

    step: int
    time: float
    seconds: float
    usual: float
    derived: bool = False

    @property
    def excess(self) -> float:
        """What it took beyond the usual, in parts of that."""
        return self.seconds / self.usual - 1

    def text(self) -> str:
        """For a human."""
        what = f"step {self.step:,} took {lasted(self.seconds)}"
        if self.derived:  # whoever pushes a step at its end has spent that time in the next one
            what = f"{lasted(self.seconds)} passed between the pushes of step {self.step:,} and the next"
        return (
            f"{what}, {factor(self.seconds / self.usual)} the {lasted(self.usual)} of the steps before: "
            f"{lasted(self.seconds - self.usual)} lost, and no schedule of pauses explains it"
        )


class SlowStep:
    """A step, or a few, that take more than *ratio* times the median of late and lie *scales* robust deviations above it.

    They have to lose *lost* seconds, too.
    """

    alerts: tuple[str, ...] = ("SlowStep",)

    def __init__(self, *, ratio: float = 1.5, scales: float = 9.0, lost: float = 0.0) -> None:
        self._ratio = ratio
        self._scales = scales
        self._learnt = min(LEARNT, 1 + LEARNT_PART * (ratio - 1))
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
        self._told_at = 0
        self._told: deque[tuple[int, float]] = deque(maxlen=2 * USED_TO)
        self._calm = 0

    def evaluate(self, column: Column, context: Context) -> Iterator[Detection]:
        """Seconds a step, in order."""
        if context.phase in PAUSES:
            return
        for at, (step, time, seconds) in enumerate(zip(*column, strict=True)):
            if 0 < seconds < inf:
                self._advance(step, time)
                if len(self._window) >= ENOUGH and seconds > self._learnt * (usual := self._window.median()):
                    yield from self._exceeds(at, Slow(step, time, seconds, usual, context.derived))
                if self._usual is not None:
                    yield from self._watch(at, step, seconds)
                self._window.add(seconds)

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

    def _exceeds(self, at: int, slow: Slow) -> Iterator[Detection]:
        scales = (slow.seconds - slow.usual) / (self._window.spread() + QUANTUM * slow.usual)
        if scales <= self._learnt_scales:
            return
        told = self._is_slow(slow.seconds, slow.usual) and scales > self._scales
        if told and not self._crowded(slow) and not self._due(slow):
            if self._index - self._last_slow > APART:
                worth = slow.seconds - slow.usual >= WORTH and not self._is_used_to(slow.excess)
                yield Detection("SlowStep", "warning" if worth else "info", at, slow.text())
                self._told.append((self._index, slow.excess))
                if self._usual is None:
                    self._usual, self._told_at = slow.usual, self._index
            self._last_slow = self._index
        if self._by_step is not None:
            self._by_step.note(slow.step, slow.excess)
        if self._by_time is not None and isfinite(slow.time):
            self._by_time.note(slow.time, slow.excess)

    def _is_used_to(self, excess: float) -> bool:
        """Whether as long ones have been told often enough."""
        since = self._index - LATELY
        return sum(at > since and ALIKE * was >= excess for at, was in self._told) >= USED_TO

    def _is_slow(self, seconds: float, usual: float) -> bool:
        return seconds > self._ratio * usual and seconds - usual >= self._lost

    def _crowded(self, slow: Slow) -> bool:
        return self._by_step is not None and self._by_step.crowded(slow.step, self._unit)

    def _due(self, slow: Slow) -> bool:
        """Whether it is a scheduled pause, or one of the steps right after it that are slow with it."""
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
            text = f"steps take {self._window.median():.3g} s again at step {step:,}"
        elif self._index - self._told_at >= USUAL:
            text = f"steps have taken {self._window.median():.3g} s for {USUAL:,} samples: that is the usual now"
        else:
            return
        self._usual = None
        yield Detection("SlowStep", "warning", at, text, over=True)
