"""Detect a level of the loss that rises and stays, suddenly or bit by bit.

The level is the median of the last 16 samples. It is compared with the lowest level so far: three quarters of the samples
must lie 15 % above it, and the rise must exceed the noise of single samples and that of the means of long blocks.

Every rise is information at first. It becomes a warning if it stays, and if it suddenly undoes a part of what the training has
learnt, or slowly all of it.
It does not become one while the schedule of the learning rate begins again. An objective, such as the loss of reinforcement
learning, rises in healthy runs: it never fell, its rises recur, or its sign changes. `LossDiverging.reading` states this.
"""

from __future__ import annotations

from collections import deque
from math import inf
from statistics import median
from typing import TYPE_CHECKING

from trackside_daemon.detectors.base import HUGE, Episode
from trackside_daemon.detectors.learnt import MUCH, Course, Learnt, Wander
from trackside_daemon.detectors.outlier import last_digit
from trackside_daemon.detectors.settings import DEFAULTS
from trackside_daemon.model.robust import NORMAL, SortedWindow
from trackside_daemon.model.text import number, times

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trackside_daemon.detectors.base import Column, Context, Detection
    from trackside_daemon.model.finding import Severity

LEVEL, LEAST = 16, 32  # samples whose median is the level; samples before the first comparison

NOISE = 5.0  # required rise in standard deviations of single samples

# Standard deviations of the means of blocks that a rise must exceed, and that the loss must have fallen before: the level of
# white noise covers six of them in 4,000 samples, that of noise with a long memory eight.
WANDERS = 8.0

# Samples for which a rise must stay until it is a warning, and twice as many until it is critical. It begins again when half
# of it is gone, so that a spike that decays is neither.
LASTS, GONE = 3 * LEVEL, 0.5

# What makes a loss an objective: rises that went by half, and changes of the sign, beyond so many deviations of single samples.
# A loss that falls below zero changes its sign once, and one that then diverges twice.
RECURS, SIGNS, BEYOND = 2, 3, 1.5
RECURRED = "it has risen and come back twice"
UNLEARNT = "it has risen without having fallen below its start"
SIGNED = "its sign has changed three times"

CRITICAL = 0.5  # rise, as a fraction of the lowest level, from which the model loses what it learned

ACCEPTED = 1000  # samples after which a new level becomes the accepted one

# Factor by which the rate must have risen since the moment, and by which it may exceed the highest before: beyond that no
# schedule has begun again, but the rate is higher than it ever was.
RAISED, ABOVE = 1.5, 1.1

_NORMAL = NORMAL / 2**0.5  # standard deviations of one sample per median distance of two successive samples


class RateRestart:
    """The learning rate now and at a marked sample: a schedule that begins again, as with warm restarts, makes a loss rise."""

    __slots__ = ("_highest", "_highest_then", "_now", "_then")

    def __init__(self) -> None:
        self._now = self._highest = self._then = self._highest_then = 0.0

    def add(self, step: int, context: Context) -> None:
        """Apply the rate of a step, if it has one."""
        rate = context.rates.get(step)
        if rate is not None:
            self._now = rate
            self._highest = max(self._highest, rate)

    def mark(self) -> None:
        """Compare with this moment from now on."""
        self._then, self._highest_then = self._now, self._highest

    def is_on(self) -> bool:
        """Return whether the rate is higher than at the marked moment, and not above what it was before."""
        return RAISED * self._then < self._now <= ABOVE * self._highest_then


class LossRise(Episode):
    """A rise above the lowest level, with its swings: it begins again when half of it has gone.

    Args:
        noise: The noise of the means of long blocks before it.
        time: When it began, in Unix seconds.

    Attributes:
        peak: The greatest height above the lowest level since it began, or began again.
        up: It goes up: it has not only fallen since it began again.
        explained: The schedule of the learning rate had begun again at the peak.
        since: When it began, or began again, in Unix seconds.
        samples: Samples since then.
    """

    __slots__ = ("_trough", "explained", "noise", "peak", "samples", "since", "up")

    def __init__(self, noise: float, time: float) -> None:
        super().__init__("LossDiverging")
        self.noise = noise
        self.peak, self._trough = 0.0, inf
        self.up, self.explained = True, False
        self.since, self.samples = time, 0

    def add(self, height: float, *, explained: bool) -> bool:
        """Add the height at the next sample; return whether half of the peak has gone."""
        self.seen += 1
        self.samples += 1
        if height > self.peak:
            self.peak, self.explained = height, explained
        self._trough = min(self._trough, height)
        gone = height <= GONE * self.peak
        self.up = self.up or (not gone and GONE * height >= self._trough)
        return gone

    def begin_again(self, height: float, time: float) -> None:
        """Begin again at this height: it must go up before it counts as another rise."""
        self.peak = self._trough = height
        self.up, self.since, self.samples = False, time, 0


class LossDiverging:
    """`LossDiverging`: the level rises by *ratio* of the lowest level and stays; critical after so many seconds.

    Attributes:
        reading: Why the series is an objective, as far as its samples show; empty for a loss.
    """

    alerts: tuple[str, ...] = ("LossDiverging",)

    def __init__(self, *, ratio: float = DEFAULTS.loss_diverging_ratio, after: float = DEFAULTS.critical_after) -> None:
        self._ratio = ratio
        self._after = after
        self._learnt = Learnt()
        self._course = Course()
        self.reading = ""
        self._recurred = self._signs = 0
        self._sign = 0.0
        self._rate = RateRestart()
        self._step: int | None = None
        self._forget()

    def _forget(self) -> None:
        self._last = SortedWindow(LEVEL)
        self._changes: deque[float] = deque(maxlen=64)
        self._wander = Wander()
        self._before = 0.0
        self._count = 0
        self._lowest = inf
        self._lowest_at = 0
        self._rise: LossRise | None = None

    def evaluate(self, column: Column, context: Context) -> Iterator[Detection]:
        """Yield what the next losses show."""
        for at, (step, time, value) in enumerate(zip(*column, strict=True)):
            if not -HUGE < value < HUGE:
                continue
            if self._step is not None and step < self._step:
                if self._rise:
                    yield self._end(self._rise, at, f"the training went back to step {number(step)}")
                self._forget()
            self._step = step
            self._changes.append(abs(value - self._before))
            self._before = value
            self._last.add(value)
            self._wander.add(value)
            self._count += 1
            self._learnt.add(value)
            self._rate.add(step, context)
            if self._count >= LEAST:
                yield from self._judge(at, step, time, context)

    def _judge(self, at: int, step: int, time: float, context: Context) -> Iterator[Detection]:
        level = self._last.median()
        self._course.add(level)
        if self._count % LEVEL == 0 and level * self._sign <= 0:
            self._note_sign(level)
        if self._rise:
            yield from self._follow(self._rise, at, step, time, level, context=context)
        elif level < self._lowest:
            self._lowest, self._lowest_at = level, step
            self._rate.mark()
        elif self._is_above(level):
            self._rise = LossRise(self._wander.noise, time)
            yield self._rise.report("info", at, self._text(level, step, context))

    def _is_above(self, level: float) -> bool:
        lowest, last = self._lowest, self._last
        rise = level - lowest
        if last.ordered[LEVEL // 4] - lowest <= self._ratio * abs(lowest) or rise <= WANDERS * self._wander.noise:
            return False
        return rise > NOISE * max(_NORMAL * median(self._changes), last_digit(last.ordered))

    def _follow(
        self, rise: LossRise, at: int, step: int, time: float, level: float, *, context: Context
    ) -> Iterator[Detection]:
        """Follow a rise until it is gone or accepted; it gets more severe while it stays."""
        height = level - self._lowest
        if rise.add(height, explained=self._rate.is_on()):
            self._note_swing(rise)
            rise.begin_again(height, time)
        if height < self._ratio / 2 * abs(self._lowest):
            yield self._end(rise, at, f"loss is back at {number(level)} at step {number(step)}")
        elif rise.seen > ACCEPTED:
            yield self._end(rise, at, f"loss stays at {number(level)}, which is now its accepted level")
        elif rise.severity != "critical":
            severity = self._judge_severity(rise, height, time)
            if rise.worsens(severity):
                yield rise.report(severity, at, self._text(level, step, context))

    def _note_sign(self, level: float) -> None:
        if abs(level) > BEYOND * _NORMAL * median(self._changes):
            self._signs += self._sign != 0
            self._sign = level
            if self._signs >= SIGNS:
                self.reading = SIGNED

    def _note_swing(self, rise: LossRise) -> None:
        matters = self._learnt.lost(rise.peak, self._lowest) >= MUCH
        self._recurred += rise.up and matters and not rise.explained
        if self._recurred >= RECURS:
            self.reading = RECURRED

    def _judge_severity(self, rise: LossRise, height: float, time: float) -> Severity:
        lost = self._learnt.lost(height, self._lowest)
        # A fraction of a level below zero means nothing, so the rise must undo more.
        least = MUCH if self._lowest > 0 else CRITICAL
        if rise.samples < LASTS or lost < least or self._rate.is_on():
            return "info"
        unlearnt = height / lost <= WANDERS * rise.noise
        if not self._course.is_sudden(self._lowest, height, MUCH if unlearnt else lost):
            self.reading = self.reading or UNLEARNT * unlearnt
            return "warning" if lost >= 1 else "info"
        if self.reading == UNLEARNT:
            self.reading = ""
        lasts = rise.samples >= 2 * LASTS and not time - rise.since < self._after  # a log may have no times
        return "critical" if lasts and height > CRITICAL * abs(self._lowest) else "warning"

    def _end(self, rise: LossRise, at: int, text: str) -> Detection:
        self._rise, self._lowest = None, inf
        return rise.end(at, text)

    def _text(self, level: float, step: int, context: Context) -> str:
        than = times(level, self._lowest)
        since = f" since its lowest at step {number(self._lowest_at)}"
        return f"loss has risen to {number(level)} at step {number(step)}, {than}{since}{context.rate_raised(step)}"
