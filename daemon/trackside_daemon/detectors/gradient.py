"""Gradients that explode or vanish."""

from __future__ import annotations

from collections import deque
from math import exp, isfinite, log
from typing import TYPE_CHECKING

from trackside_daemon.detectors.base import Detection
from trackside_daemon.detectors.window import Window
from trackside_daemon.detectors.wording import factor, number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trackside_daemon.detectors.base import Column, Context
    from trackside_daemon.model.finding import Severity

NEAR = 9
"""Samples whose median is the usual of late; short, so that it follows a norm that falls or rises by itself."""

LONG = 128
"""Samples from which it is known how far norms lie from that median, and how many there must be at least."""
ENOUGH = 15

BLOCK = 10
"""Samples whose median stands for them in what is remembered for long."""
BLOCKS = 50

LEAST = 1e-30
"""Norms below count as this: zero has no logarithm."""

NOTHING = 1e-8
"""A norm below is none, whatever it was before."""

VANISHED = 20
"""Samples in a row."""

USUAL = 1000
"""Samples after which a low norm becomes what is usual."""

CALM = 20
"""Samples in a row after which an explosion is over."""

APART = 5
"""Samples: what comes so soon after another is the same explosion."""

CRITICAL = 100.0
"""Times the usual norm from which a step without clipping cannot be survived."""

AT_ONCE = 25.0
"""Times the usual norm that are told at one sample; less, which clipping makes harmless, must come *OFTEN* in *AMONG*."""
OFTEN = 2
AMONG = 5

TAIL = 2.0
"""Times the distance that one norm in 20 has anyway."""

SPARSER = 4
"""A distance of steps that changes by more than this factor: other samples are logged now, and nothing is known of them."""


class Gradient:
    """A norm that is *times* the usual of late, or a *times*-th of that of long, and beyond *scales* robust deviations.

    It is judged by its logarithm, since norms differ by factors. It also tells the context how the norm stands.
    """

    alerts: tuple[str, ...] = (
        "GradientExplosion",
        "GradientVanishing",
    )

    def __init__(self, *, times: float = 3.0, scales: float = 8.0, vanished: float = 10.0) -> None:
        self._times = log(times)
        self._scales = scales
        self._vanished = log(vanished)
        self._near = Window(NEAR)
        self._off = Window(LONG)
        self._block: list[float] = []
        self._long = Window(BLOCKS)
        self._index = 0
        self._step = 0
        self._gap = 0
        self._odd = 0
        self._high: deque[int] = deque(maxlen=OFTEN)
        self._exploded_at: int | None = None
        self._critical = False
        self._last_told = -APART
        self._low = 0
        self._low_since = 0
        self._risen = 0
        self._vanishing = False

    def evaluate(self, column: Column, context: Context) -> Iterator[Detection]:
        """Norms of the gradients, in order."""
        for at, (step, norm) in enumerate(zip(column.steps, column.values, strict=True)):
            if isfinite(norm) and norm >= 0:
                self._index += 1
                self._advance(step)
                size = log(norm) if norm > LEAST else log(LEAST)
                yield from self._judge(at, step, size, context)
                yield from self._judge_low(at, step, size)
                if norm >= NOTHING:
                    self._remember(size)

    def _judge(self, at: int, step: int, size: float, context: Context) -> Iterator[Detection]:
        if len(self._near) < NEAR:
            return
        over = size - self._near.median()
        context.gradient = exp(min(over, 700.0))
        if over > self._times and len(self._off) >= ENOUGH and over > self._beyond():
            self._high.append(self._index)
            lasting = len(self._high) == OFTEN and self._index - self._high[0] < AMONG
            if lasting or context.gradient >= AT_ONCE:
                severity: Severity = "critical" if context.gradient >= CRITICAL else "warning"
                worse = severity == "critical" and not self._critical
                if self._index - self._last_told >= APART or worse:
                    yield Detection("GradientExplosion", severity, at, _exploded(step, size, context.gradient))
                self._critical |= worse
                self._last_told = self._exploded_at = self._index
        elif self._exploded_at is not None and self._index - self._exploded_at >= CALM:
            self._exploded_at, self._critical = None, False
            text = f"the gradient norm is {_norm(size)} at step {step:,}, as usual of late"
            yield Detection("GradientExplosion", "warning", at, text, over=True)

    def _judge_low(self, at: int, step: int, size: float) -> Iterator[Detection]:
        usual = self._long.median() if len(self._long) else size
        under = usual - size
        low = size < log(NOTHING) or (under > self._vanished and under > self._scales * self._scale())
        if not low:
            self._low = 0
            self._risen += 1
            if self._vanishing and self._risen >= VANISHED:
                self._vanishing = False
                yield Detection(
                    "GradientVanishing",
                    "warning",
                    at,
                    f"the gradient norm is {_norm(size)} again at step {step:,}",
                    over=True,
                )
            return
        self._risen = 0
        if not self._low:
            self._low_since = step
        self._low += 1
        if self._low == VANISHED and not self._vanishing:
            self._vanishing = True
            yield Detection("GradientVanishing", "warning", at, self._vanished_text(step, size, usual))

    def _vanished_text(self, step: int, size: float, usual: float) -> str:
        text = f"the gradient norm is {_norm(size)} at step {step:,} and has been so low since step {self._low_since:,}"
        if usual > log(NOTHING):
            text += f", where {number(exp(usual))} was usual"
        return f"{text}: hardly anything is learnt"

    def _beyond(self) -> float:
        """How far above the usual a norm must lie: logarithms."""
        ordered = self._off.ordered
        return max(self._scales * self._scale(), TAIL * ordered[19 * len(ordered) // 20])

    def _advance(self, step: int) -> None:
        """Norms of every hundredth step differ from those of every step: where that changes twice in a row, all begins anew."""
        gap = step - self._step
        self._step = step
        if gap <= 0:
            return
        odd = self._gap and not self._gap / SPARSER <= gap <= self._gap * SPARSER
        self._odd = self._odd + 1 if odd else 0
        if self._odd == 1:
            return
        if odd:
            for window in (self._near, self._off, self._long):
                window.clear()
            self._block.clear()
            self._odd = 0
        self._gap = gap

    def _scale(self) -> float:
        return 1.4826 * self._off.median() if len(self._off) else 0.0

    def _remember(self, size: float) -> None:
        if len(self._near):
            self._off.add(abs(size - self._near.median()))
        self._near.add(size)
        if not self._low or self._low > USUAL:
            self._block.append(size)
            if len(self._block) == BLOCK:
                self._block.sort()
                self._long.add(self._block[BLOCK // 2])
                self._block.clear()


def _norm(size: float) -> str:
    """The norm whose logarithm is *size*."""
    return number(exp(size)) if size > log(LEAST) else "0"


def _exploded(step: int, size: float, times: float) -> str:
    usual = number(exp(size) / times)
    return f"gradient norm {number(exp(size))} at step {step:,}, {factor(times)} the {usual} of the steps before"
