"""Detect gradients that explode or vanish."""

from __future__ import annotations

from collections import deque
from math import exp, inf, log
from statistics import median
from typing import TYPE_CHECKING

from trackside_daemon.detectors.base import Detection
from trackside_daemon.detectors.learnt import FIRST
from trackside_daemon.model.finding import SEVERITIES
from trackside_daemon.model.robust import NORMAL, Window
from trackside_daemon.model.text import factor, number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trackside_daemon.detectors.base import Column, Context
    from trackside_daemon.model.finding import Severity

NEAR = 9  # Number of samples whose median is the recent level. Few, so that it follows a norm that drifts.
LONG = 128  # samples that give the usual distance from that median: at most LONG, at least ENOUGH
ENOUGH = 15

BLOCK = 10  # the long memory: the medians of the last BLOCKS blocks of BLOCK samples
BLOCKS = 50
SETTLED = 20  # of them, before which a norm falls because the training has just begun

LEAST = 1e-30  # smaller norms count as this value, because zero has no logarithm
NOTHING = 1e-8  # a smaller norm has vanished, whatever it was before
VANISHED = 20  # consecutive low samples that make an alert, and consecutive normal ones that end it
USUAL = 1000  # samples after which a low norm becomes the usual one
CALM = 20  # samples without a high norm after which an explosion is over

# Samples after which an explosion is a warning, if `MOSTLY` of them are AT_ONCE times the level before.
LASTS = 16
MOSTLY = 0.75

CRITICAL = 100.0  # factor over the usual norm that a step without clipping does not survive
AFTER = 60.0  # seconds for which high norms must have come until such a factor is critical

# Factor over the usual norm that is reported at the first sample. Smaller ones, which clipping makes harmless, must
# come OFTEN times in AMONG samples.
AT_ONCE = 25.0
OFTEN = 2
AMONG = 5

# Factor by which the distance between logged steps may change. Beyond it the training logs other samples, and the
# detector starts again.
SPARSER = 4


class Gradient:
    """Gradient norms, compared by their logarithm because norms differ by factors.

    Also adds to `Context.gradients`, which other detectors read.

    Args:
        times: Factor over the recent level that is an explosion.
        scales: Robust standard deviations that a norm must lie from the level.
        vanished: Factor below the long-term level that is vanishing.
        after: Seconds after which an explosion can be critical.
    """

    alerts: tuple[str, ...] = ("GradientExplosion", "GradientVanishing")

    def __init__(
        self, *, times: float = 3.0, scales: float = 8.0, vanished: float = 10.0, after: float = AFTER
    ) -> None:
        self._times = log(times)
        self._scales = scales
        self._vanished = log(vanished)
        self._near = Window(NEAR)
        self._off = Window(LONG)
        self._block: list[float] = []
        self._long = Window(BLOCKS)
        self._losses: deque[float] = deque(maxlen=BLOCK)
        self._loss = Window(BLOCKS)
        self._index = 0
        self._step = 0
        self._gap = 0
        self._odd = 0
        self._high: deque[int] = deque(maxlen=OFTEN)
        self._severity: Severity | None = None
        self._first: list[float] = []
        self._after = after
        self._before = self._since = 0.0
        self._seen = self._great = self._calm = 0
        self._low = 0
        self._low_since = 0
        self._risen = 0
        self._vanishing = False

    def evaluate(self, column: Column, context: Context) -> Iterator[Detection]:
        """Yield what the next gradient norms show."""
        near = self._near
        for at, (step, time, norm) in enumerate(zip(*column, strict=True)):
            if not 0 <= norm < inf:
                continue
            self._index += 1
            if self._index <= FIRST:
                self._first.append(norm)
            if step - self._step != self._gap or self._odd:
                self._advance(step)
            self._step = step
            size = log(norm) if norm > LEAST else log(LEAST)
            over = size - near.median() if near.ordered else 0.0
            if len(near.ordered) == NEAR:
                # Of several norms, that of the whole model comes first; exp() raises OverflowError above 709.
                context.gradients.setdefault(step, exp(min(over, 700.0)))
                if over > self._times or self._severity is not None:
                    yield from self._judge(at, step, time, size, over)
            loss = context.losses.get(step)
            if loss is not None:
                self._losses.append(loss)
            usual = self._long.median() if len(self._long) >= SETTLED else size
            if usual - size > self._vanished or self._low or self._vanishing or norm < NOTHING:
                yield from self._judge_low(at, step, size, usual)
            if norm >= NOTHING:
                self._remember(size, over)

    def _judge(self, at: int, step: int, time: float, size: float, over: float) -> Iterator[Detection]:
        if over > self._times and len(self._off) >= ENOUGH and over > self._scales * self._scale():
            self._high.append(self._index)
            often = len(self._high) == OFTEN and self._index - self._high[0] < AMONG
            if self._severity is None and (often or over > log(AT_ONCE)):
                self._before, self._since, self._seen, self._great, self._calm = size - over, time, 0, 0, 0
                self._severity = "info"
                yield Detection("GradientExplosion", "info", at, _exploded(step, size, over))
        if self._severity is not None:
            yield from self._follow(at, step, time, size)

    def _follow(self, at: int, step: int, time: float, size: float) -> Iterator[Detection]:
        """Yield how an explosion goes on, compared with the level before it."""
        over = size - self._before
        self._seen += 1
        self._great += over > log(AT_ONCE) and size > log(max(LEAST, median(self._first)))
        self._calm = 0 if over > self._times else self._calm + 1
        if self._calm >= CALM or self._seen > USUAL:
            severity, self._severity = self._severity or "info", None
            text = f"the gradient norm is {_norm(size)} at step {step:,}, back at its recent level"
            yield Detection("GradientExplosion", severity, at, text, over=True)
        elif self._seen >= LASTS and self._great >= MOSTLY * self._seen and over > log(AT_ONCE):
            lasts = self._seen >= 2 * LASTS and not time - self._since < self._after  # a log may have no times
            severity = "critical" if lasts and over > log(CRITICAL) else "warning"
            if SEVERITIES.index(severity) > SEVERITIES.index(self._severity or "info"):
                self._severity = severity
                yield Detection("GradientExplosion", severity, at, _exploded(step, size, over))

    def _judge_low(self, at: int, step: int, size: float, usual: float) -> Iterator[Detection]:
        under = usual - size - self._converged()
        nothing = size < log(NOTHING) and abs(self._lately()) > NOTHING
        low = nothing or (under > self._vanished and under > self._scales * self._long.spread())
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

    def _converged(self) -> float:
        """Return by how much the logarithm of the loss is below its usual one: the gradients of a small loss are small."""
        loss = self._lately()
        return max(0.0, self._loss.median() - log(loss)) if len(self._loss) and 0 < loss < inf else 0.0

    def _lately(self) -> float:
        """Return the level of the loss that is pushed with the norm; infinite without one."""
        return median(self._losses) if self._losses else inf

    def _vanished_text(self, step: int, size: float, usual: float) -> str:
        text = (
            f"the gradient norm is {_norm(size)} at step {step:,}, and has been this low since step {self._low_since:,}"
        )
        if usual > log(NOTHING):
            text += f", compared with {number(exp(usual))} before"
        return f"{text}: the model hardly learns"

    def _advance(self, step: int) -> None:
        """Start again where the distance between logged steps has changed for two samples in a row."""
        # Norms of every hundredth step are distributed differently from those of every step.
        gap = step - self._step
        if gap <= 0:
            return
        odd = self._gap and not self._gap / SPARSER <= gap <= self._gap * SPARSER
        self._odd = self._odd + 1 if odd else 0
        if self._odd == 1:
            return
        if odd:
            for window in (self._near, self._off, self._long, self._loss):
                window.clear()
            self._block.clear()
            self._odd = 0
        self._gap = gap

    def _scale(self) -> float:
        return NORMAL * self._off.median() if len(self._off) else 0.0

    def _remember(self, size: float, over: float) -> None:
        if len(self._near):
            self._off.add(abs(over))
        self._near.add(size)
        if not self._low or self._low > USUAL:
            self._block.append(size)
            if len(self._block) == BLOCK:
                self._block.sort()
                self._long.add(self._block[BLOCK // 2])
                loss = self._lately()
                if 0 < loss < inf:
                    self._loss.add(log(loss))
                self._block.clear()


def _norm(size: float) -> str:
    """Return the norm whose natural logarithm is *size*, as text."""
    return number(exp(size)) if size > log(LEAST) else "0"


def _exploded(step: int, size: float, over: float) -> str:
    times = factor(exp(min(over, 700.0)))
    return f"gradient norm {number(exp(size))} at step {step:,}, {times} the {number(exp(size - over))} of the steps before"
