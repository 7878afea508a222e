"""Detect gradients that explode or vanish."""

from collections import deque
from collections.abc import Iterator
from math import exp, inf, log
from statistics import median

from trackside_daemon.detectors.base import Column, Context, Detection, Episode, Streak
from trackside_daemon.detectors.settings import DEFAULTS, DetectorThresholds
from trackside_daemon.model.finding import Severity
from trackside_daemon.model.records import STEP
from trackside_daemon.model.robust import NORMAL, SortedWindow
from trackside_daemon.model.text import factor, number

NEAR = 9  # Number of samples whose median is the recent level. Few, so that it follows a norm that drifts.
LONG = 128  # samples that give the usual distance from that median: at most LONG, at least ENOUGH
ENOUGH = 15

BLOCK = 10  # the long memory: the medians of the last BLOCKS blocks of BLOCK samples
BLOCKS = 50
SETTLED = 20  # of them, before which a norm falls because the training has just begun

FIRST = 5  # norms whose median is that of the start
LEAST = 1e-30  # smaller norms count as this value, because zero has no logarithm
NOTHING = 1e-8  # a smaller norm has vanished, whatever it was before
VANISHED = 20  # consecutive low samples that make an alert, and consecutive normal ones that end it
USUAL = 1000  # samples after which a low norm becomes the usual one
CALM = 20  # samples without a high norm after which an explosion is over

# Samples after which an explosion is a warning, if `MOSTLY` of them are AT_ONCE times the level before.
LASTS = 16
MOSTLY = 0.75

SCALES = 8.0  # robust standard deviations that a norm must lie from the level
CRITICAL = 100.0  # factor over the usual norm that a step without clipping does not survive

# Factor over the usual norm that is reported at the first sample. Smaller ones, which clipping makes harmless, must
# come OFTEN times in AMONG samples.
AT_ONCE = 25.0
OFTEN = 2
AMONG = 5


class LongMemory:
    """The norms of the run, by the medians of blocks, and the losses that are pushed with them.

    Attributes:
        usual: The median of the blocks, as a logarithm; None as long as there are too few.
        losses: The last losses.
        sizes: The medians of the blocks, as logarithms.
    """

    __slots__ = ("_block", "_level", "losses", "sizes", "usual")

    def __init__(self) -> None:
        self.losses: deque[float] = deque(maxlen=BLOCK)
        self.usual: float | None = None
        self._block: list[float] = []
        self.sizes, self._level = SortedWindow(BLOCKS), SortedWindow(BLOCKS)

    def add(self, size: float) -> None:
        """Add the logarithm of a norm."""
        self._block.append(size)
        if len(self._block) == BLOCK:
            self._block.sort()
            self.sizes.add(self._block[BLOCK // 2])
            self.usual = self.sizes.median() if len(self.sizes) >= SETTLED else None
            loss = self.loss()
            if 0 < loss < inf:
                self._level.add(log(loss))
            self._block.clear()

    def loss(self) -> float:
        """Return the level of the loss that is pushed with the norm; infinite without one."""
        return median(self.losses) if self.losses else inf

    def converged(self) -> float:
        """Return by how much the logarithm of the loss is below its usual one: the gradients of a small loss are small."""
        loss = self.loss()
        return max(0.0, self._level.median() - log(loss)) if len(self._level) and 0 < loss < inf else 0.0


class Gradient:
    """Gradient norms, compared by their logarithm because norms differ by factors.

    Also adds to `Context.gradients`, which other detectors read.
    """

    alerts: tuple[str, ...] = ("GradientExplosion", "GradientVanishing")

    def __init__(self, thresholds: DetectorThresholds = DEFAULTS) -> None:
        self._times = log(thresholds.gradient_explosion_ratio)
        self._vanished = log(thresholds.gradient_vanishing_ratio)
        self._after = thresholds.critical_after
        self._near = SortedWindow(NEAR)
        self._off: deque[float] = deque(maxlen=LONG)  # distances from the median of the recent ones
        self._memory = LongMemory()
        self._index = 0
        self._first: list[float] = []
        self._high: deque[int] = deque(maxlen=OFTEN)
        self._explosion, self._great = Episode("GradientExplosion", CALM), 0
        self._before = (0.0, 0.0, 0)
        """The level before the explosion, as a logarithm, and its first time and step."""
        self._vanishing, self._low = Episode("GradientVanishing", VANISHED), Streak()

    def evaluate(self, column: Column, context: Context) -> Iterator[Detection]:
        """Yield what the next gradient norms show."""
        near, memory = self._near, self._memory
        for at, (step, time, norm) in enumerate(zip(*column, strict=True)):
            if not 0 <= norm < inf:
                continue
            self._index += 1
            if self._index <= FIRST:
                self._first.append(norm)
            size = log(norm) if norm > LEAST else log(LEAST)
            over = size - near.median() if near.ordered else 0.0
            if len(near.ordered) == NEAR:
                # Of several norms, that of the whole model comes first; exp() raises OverflowError above 709.
                context.gradients.setdefault(step, exp(min(over, 700.0)))
                if over > self._times or self._explosion.fires:
                    yield from self._judge(at, step, time, size, over)
            loss = context.losses.get(step)
            if loss is not None:
                memory.losses.append(loss)
            usual = size if memory.usual is None else memory.usual
            if usual - size > self._vanished or self._low.count or self._vanishing.fires or norm < NOTHING:
                yield from self._judge_low(at, step, size, usual)
            if norm >= NOTHING:
                self._remember(size, over)

    def _remember(self, size: float, over: float) -> None:
        if self._near.ordered:
            self._off.append(abs(over))
        self._near.add(size)
        if not self._low.count or self._low.count > USUAL:
            self._memory.add(size)

    def _judge(self, at: int, step: int, time: float, size: float, over: float) -> Iterator[Detection]:
        if over > self._times and len(self._off) >= ENOUGH and over > SCALES * (NORMAL * median(self._off)):
            self._high.append(self._index)
            often = len(self._high) == OFTEN and self._index - self._high[0] < AMONG
            if not self._explosion.fires and (often or over > log(AT_ONCE)):
                self._before, self._great = (size - over, time, step), 0
                yield self._explosion.report("info", at, _exploded(step, size, over))
        if self._explosion.fires:
            yield from self._follow(at, step, time, size)

    def _follow(self, at: int, step: int, time: float, size: float) -> Iterator[Detection]:
        """Yield how an explosion goes on, compared with the level before it, and with the first norms."""
        explosion, (before, since, first) = self._explosion, self._before
        over = size - before
        self._great += over > log(AT_ONCE) and size > log(max(LEAST, median(self._first)))
        if explosion.follow(calm=over <= self._times) or explosion.seen > USUAL:
            yield explosion.end(at, f"the gradient norm is {_norm(size)} at step {step:,}, back at its recent level")
        elif explosion.seen >= LASTS and self._great >= MOSTLY * explosion.seen and over > log(AT_ONCE):
            # A log may have no times.
            lasts = explosion.seen >= 2 * LASTS and not time - since < self._after
            severity: Severity = "critical" if lasts and over > log(CRITICAL) else "warning"
            if explosion.worsens(severity):
                lasted = f", and has been high for {step - first:,} steps, since step {first:,}"
                yield explosion.report(severity, at, _exploded(step, size, over) + lasted, {STEP: first})

    def _judge_low(self, at: int, step: int, size: float, usual: float) -> Iterator[Detection]:
        memory, vanishing = self._memory, self._vanishing
        under = usual - size - memory.converged()
        nothing = size < log(NOTHING) and abs(memory.loss()) > NOTHING
        low = nothing or (under > self._vanished and under > SCALES * memory.sizes.spread())
        if vanishing.fires and vanishing.follow(calm=not low):
            yield vanishing.end(at, f"the gradient norm is {_norm(size)} again at step {step:,}")
        if not low:
            self._low.count = 0
            return
        self._low.add(step)
        if self._low.count == VANISHED and not vanishing.fires:
            yield vanishing.report("warning", at, self._vanished_text(step, size, usual))

    def _vanished_text(self, step: int, size: float, usual: float) -> str:
        text = (
            f"the gradient norm is {_norm(size)} at step {step:,}, and has been this low since step {self._low.since:,}"
        )
        if usual > log(NOTHING):
            text += f", compared with {number(exp(usual))} before"
        return f"{text}: the model hardly learns"


def _norm(size: float) -> str:
    """Return the norm whose natural logarithm is *size*, as text."""
    return number(exp(size)) if size > log(LEAST) else "0"


def _exploded(step: int, size: float, over: float) -> str:
    times = factor(exp(min(over, 700.0)))
    return f"gradient norm {number(exp(size))} at step {step:,}, {times} the {number(exp(size - over))} of the steps before"
