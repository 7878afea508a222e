"""Detect a level of the loss that rises and stays, suddenly or bit by bit.

The level is the median of the last 16 samples. It is compared with the lowest level so far: three quarters of the samples
must lie 15 % above it, and the rise must exceed the noise of single samples, less the longer it stays, and that of the levels of
blocks, more the longer the training is.

Every rise is information at first. Its cost is the share of what was learnt that it undoes, summed over its samples. It becomes
a warning once that is `COST`, and critical at twice that. A rise that came back by itself shows what is normal in this training:
the next one must cost twice as much.
It does not become one if it is as slow as the training itself, and is not reported while the schedule of the learning rate
begins again. An objective, such as the loss of reinforcement learning, rises in healthy runs: it never fell.
`LossDiverging.reading` states this.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from math import e, inf, log, sqrt
from statistics import median

from trackside_daemon.detectors.base import HUGE, Column, Context, Detection, Episode, Test
from trackside_daemon.detectors.settings import DEFAULTS, DetectorThresholds
from trackside_daemon.model.finding import Severity
from trackside_daemon.model.robust import NORMAL, SortedWindow, last_digit
from trackside_daemon.model.text import number, times

FIRST = 5  # samples whose second highest is the initial loss: a loss that is logged rarely may have fallen by the third

# Share of what was learnt below which a rise is only information. Late in a training that has converged, the
# noise of the loss is many times its level and still next to nothing of the fall.
MUCH = 0.05

# Samples in the shortest block, and the number of lengths, each twice the one before. A loss wanders with the order of
# its data, and only the means of long blocks show this: successive samples look quieter than they are.
BLOCK, LENGTHS = 8, 6

KNOWN, KEPT = 4, 24  # bends that are needed for a noise, and kept
POINTS = 64  # levels of the whole run that are kept

# A rise is sudden that would undo all that was learnt in a quarter of the time that it took: a target that moves, or a penalty
# that is annealed, changes the loss about as slowly as the training does.
FASTER = 4

# Standard deviations of a random walk's half step per median bend, and of white noise per median bend at turns.
BEND, TURN = NORMAL / 2, 0.53

LEVEL, LEAST = 16, 32  # samples whose median is the level; samples before the first comparison

# Required rise of one level in standard deviations of single samples, by their last changes; while it stays, the error of the level of
# all its samples is less.
NOISE, CHANGES = 4.0, 64

# Standard deviations of the levels of blocks that a rise must exceed, and that the loss must have fallen before, as a multiple of
# those by which the highest and the lowest of so many normal numbers differ.
WANDERS = 1.2

# Samples at the initial loss that a rise must cost until it is a warning, and twice as many until it is critical.
COST = 10.0

UNLEARNT = "it has risen without having fallen below its start"

CRITICAL = 0.5  # rise, as a fraction of the lowest level and of its peak, from which the model loses what it learned

BACK = 1 / e  # share of its peak below which a rise is on its way back, that of one time constant

# Samples after which a new level becomes the accepted one, once it has lasted long enough to be critical. A critical one above the
# initial loss, where nothing that was learnt is left, must have fallen to this share of its highest rise: the model learns again.
ACCEPTED, LEARNS = 1000, 0.9

# Factor by which the rate must have risen since the moment, and by which it may exceed the highest before: beyond that no
# schedule has begun again, but the rate is higher than it ever was.
RAISED, ABOVE = 1.5, 1.1


_NORMAL = NORMAL / 2**0.5  # standard deviations of one sample per median distance of two successive samples


def undone(first: float, rise: float, level: float) -> tuple[float, float]:
    """Return the share of the fall from the *first* loss to *level* that a *rise* undoes, and its mean with that of the logarithm.

    The last factors of a fall are next to nothing of it and took most of the training. Both are infinite without a fall.
    """
    lost = rise / (first - level) if first > level else inf
    if lost >= 1 or level <= 0:
        return lost, lost
    return lost, sqrt(lost * log((level + rise) / level) / log(first / level))


class Wander:
    """The noise of the levels of successive blocks, for blocks of several lengths: the bends between three levels in a row.

    Args:
        level: The level of the samples of a shortest block; the mean of two levels is that of a block of twice the length.
        turns: Only bends count at which the level turns: a descent has none.
    """

    __slots__ = ("_bends", "_blocks", "_last", "_level", "_noise", "_turns")

    def __init__(self, level: Callable[[list[float]], float], *, turns: bool) -> None:
        self._level, self._turns = level, turns
        self._blocks = 0
        self._last = [(0.0, 0.0)] * LENGTHS
        self._bends = [SortedWindow(KEPT) for _ in range(LENGTHS)]
        self._noise = inf if turns else 0.0

    def add(self, block: list[float]) -> None:
        """Add the next `BLOCK` finite numbers."""
        level = self._level(block)
        self._blocks += 1
        for length, bends in enumerate(self._bends):
            first, second = self._last[length]
            self._last[length] = second, level
            count = self._blocks >> length
            there, back = second - first, second - level
            if count > 2 and (there * back > 0 or not self._turns):
                bends.add(abs(there + back))  # a steady fall is no noise
            if count & 1:
                break
            level = (second + level) / 2

    def noise(self) -> float:
        """Return a robust standard deviation of the levels of the length that has the largest.

        The shortest blocks have half of the samples of a level, so their noise counts as that of two. It is unknown at first: 0, or
        infinite for *turns*, because a series of few values hardly turns.
        """
        noises = [bends.median() if len(bends) >= KNOWN else 0.0 for bends in self._bends]
        noise = max(noises[0] / sqrt(2), *noises[1:])
        self._noise = noise * (TURN if self._turns else BEND) or self._noise
        return self._noise


def mean(block: list[float]) -> float:
    """Return the mean of a block."""
    return sum(block) / BLOCK


def middle(block: list[float]) -> float:
    """Return the mean of the middle half of a block, which few outliers do not move."""
    return sum(sorted(block)[BLOCK // 4 : -BLOCK // 4]) / (BLOCK // 2)


class Course:
    """The level of a loss over the whole run, at most `POINTS` of them at equal distances, which double when there are more."""

    __slots__ = ("_begin", "_every", "_left", "_levels")

    def __init__(self) -> None:
        self._every = self._left = 1
        self._begin = 0
        self._levels: list[float] = []

    def add(self, level: float) -> None:
        """Add the level at the next sample."""
        self._left -= 1
        if not self._left:
            self._levels.append(level)
            if len(self._levels) > POINTS:
                del self._levels[1::2]
                self._begin = (self._begin + 1) // 2
                self._every *= 2
            self._left = self._every

    def begin(self) -> None:
        """Leave what was before out of `usual`."""
        self._begin = len(self._levels)

    def usual(self) -> float:
        """Return the median of the levels since the lowest after `begin`; the lowest itself if they are few."""
        levels = self._levels[self._begin :] or self._levels[-1:]
        since = levels[levels.index(min(levels)) :]
        return median(since) if len(since) > POINTS // 8 else since[0]

    def is_sudden(self, lowest: float, rise: float, lost: float) -> bool:
        """Return whether the level rose `FASTER` from *lowest* than the training learnt; the rise undid the share *lost* of that.

        The middle half of the rise counts, until the level is first above it: a level that is noisy may fall into it again. What a
        median and the distance of the levels need to show a jump is no time that it took.
        """
        low, high = lowest + rise / 4, lowest + 3 * rise / 4
        fell = next((at for at, level in enumerate(self._levels) if level <= low), 0)
        since = self._levels[fell:]
        before = fell + sum(lowest - rise / 4 < level <= low for level in since)
        top = next((at for at, level in enumerate(since) if level >= high), len(since))
        foot = max((at for at in range(top) if since[at] <= low), default=-1)
        lasted = top - foot - 1
        blurred = max(1.0, 2 * BLOCK / self._every)
        return 2 * FASTER * lasted <= before and 2 * FASTER * (lasted - blurred) <= min(1.0, lost) * before


class RateRestart:
    """The learning rate now and at a marked sample: a schedule that begins again, as with warm restarts, makes a loss rise."""

    __slots__ = ("_highest", "_highest_then", "_now", "_then")

    def __init__(self) -> None:
        self._now = self._highest = self._then = self._highest_then = 0.0

    def add(self, rate: float) -> None:
        """Apply the rate of a step."""
        self._now = rate
        self._highest = max(self._highest, rate)

    def mark(self) -> None:
        """Compare with this moment from now on."""
        self._then, self._highest_then = self._now, self._highest

    def is_on(self) -> bool:
        """Return whether the rate is higher than at the marked moment, and not above what it was before."""
        return RAISED * self._then < self._now <= ABOVE * self._highest_then


class LossDiverging:
    """`LossDiverging`: the level rises by a ratio of the lowest level and stays; critical after so many seconds.

    Attributes:
        reading: Why the series is an objective, as far as its samples show; empty for a loss.
    """

    alerts: tuple[str, ...] = ("LossDiverging",)

    def __init__(self, thresholds: DetectorThresholds = DEFAULTS) -> None:
        self._ratio, self._after = thresholds.loss_diverging_ratio, thresholds.critical_after
        self._first: list[float] = []
        self._rate = RateRestart()
        self._course = Course()
        self.reading = ""
        self._rise = Episode("LossDiverging")
        self._since = self._covered = self._cost = self._peak = self._usual = self._calm = 0.0
        self._forget()

    def _forget(self) -> None:
        self._last = SortedWindow(LEVEL)
        self._values = deque([0.0], maxlen=CHANGES + 1)
        self._wanders = Wander(mean, turns=False), Wander(middle, turns=True)
        self._count = 0
        self._high = 0, 0
        """The counts of the first and the last sample in a row at which three quarters were above the lowest level."""
        self._lowest = inf
        self._lowest_at = 0
        self._course.begin()

    def evaluate(self, column: Column, context: Context) -> Iterator[Detection]:
        """Yield what the next losses show."""
        restarts, rates = context.restarts, context.rates
        self._add_first(column.values)
        for at, (step, time, value) in enumerate(zip(*column, strict=True)):
            if not -HUGE < value < HUGE:
                continue
            if restarts and restarts.get(step):
                yield from self._start_again(at, step)
            self._last.add(value)
            self._values.append(value)
            self._count += 1
            if not self._count % BLOCK:
                self._end_block()
            if rates and (rate := rates.get(step)) is not None:
                self._rate.add(rate)
            if self._count < LEAST:
                continue
            level = self._last.median()
            self._course.add(level)
            if self._rise.fires:
                yield from self._follow(at, step, time, level, context=context)
            elif level < self._lowest:
                self._lowest, self._lowest_at = level, step
                self._rate.mark()
            elif (
                level - self._lowest > self._ratio * abs(self._lowest)
                and self._has_risen(level)
                and not self._rate.is_on()
            ):
                self._since, self._covered = time, self._covers()
                # Of a loss of much noise, the lowest level was a chance: where it usually was since, it is back.
                self._calm = max(self._ratio / 2 * abs(self._lowest), self._course.usual() - self._lowest)
                self._cost = self._peak = 0.0
                yield self._report("info", at, step, level, context)

    def _add_first(self, values: Sequence[float]) -> None:
        if len(self._first) < FIRST:
            self._first += [value for value in values if -HUGE < value < HUGE][: FIRST - len(self._first)]

    def _start_again(self, at: int, step: int) -> Iterator[Detection]:
        if self._rise.fires:
            yield self._rise.end(at, f"the training has started again at step {number(step)}")
        self._forget()

    def _end_block(self) -> None:
        block = list(self._values)[-BLOCK:]
        for wander in self._wanders:
            wander.add(block)

    def _has_risen(self, level: float) -> bool:
        _, risen, needed = next(tests := self._tests(level))
        if risen <= needed:
            return False
        if self._high[1] != self._count - 1:
            self._high = self._count, self._count
        self._high = self._high[0], self._count
        return all(value > needed for _, value, needed in tests)

    def _tests(self, level: float) -> Iterator[Test]:
        lowest, last = self._lowest, self._last.ordered
        rise = level - lowest
        yield Test("rise of three quarters of the samples", last[LEVEL // 4] - lowest, self._ratio * abs(lowest))
        yield Test("rise, with the noise of long blocks", rise, self._covers())
        noise = _NORMAL * median(abs(new - old) for old, new in pairwise(self._values))
        error = max(noise, last_digit(last)) * sqrt(LEVEL / (LEVEL + self._high[1] - self._high[0]))
        yield Test("rise, with the noise of samples", rise, NOISE * error)

    def _covers(self) -> float:
        """Return what the level may cover by the noise of blocks: means bend in a descent and by outliers, middles seldom turn at first."""
        noise = min(wander.noise() for wander in self._wanders)
        return WANDERS * 2 * sqrt(2 * log(self._count / LEVEL)) * noise

    def explain(self) -> Iterator[Test]:
        """Yield the tests of the last loss that decide: whether it fires, and while it does, how severe it is."""
        if self._count < LEAST:
            yield Test("samples", self._count, LEAST - 1)
        elif not self._rise.fires:
            yield from self._tests(self._last.median())
        else:
            needed = self._needed() * (1 + (self._rise.severity != "info"))
            yield Test("cost, for the next severity", self._cost, needed)

    def _follow(self, at: int, step: int, time: float, level: float, *, context: Context) -> Iterator[Detection]:
        """Follow a rise until it is gone or accepted; it gets more severe while it stays."""
        rise, height = self._rise, level - self._lowest
        self._peak = max(self._peak, height)
        rise.follow(calm=False)
        if height < self._calm:
            self._usual = max(self._usual, self._cost)
            yield self._end(at, f"loss is back at {number(level)} at step {number(step)}")
        elif rise.severity != "critical" and rise.worsens(
            severity := self._judge_severity(height, step, time, context)
        ):
            yield self._report(severity, at, step, level, context)
        elif rise.seen > ACCEPTED and self._lasts(time) and not self._is_lost(level):
            yield self._end(at, f"loss stays at {number(level)}, which is now its accepted level", accepted=True)

    def _is_lost(self, level: float) -> bool:
        highest = self._last.ordered[-1] - self._lowest
        return self._rise.severity == "critical" and level >= self._initial() and highest >= LEARNS * self._peak

    def _initial(self) -> float:
        return sorted(self._first)[-2]

    def _needed(self) -> float:
        return max(COST, 2 * self._usual)

    def _judge_severity(self, height: float, step: int, time: float, context: Context) -> Severity:
        lost, part = undone(self._initial(), height, self._lowest)
        if self._rate.is_on() or part < MUCH:
            return "info"
        self._cost += min(1.0, part)
        if self._cost < self._needed() or height < BACK * self._peak or step in context.restarts:
            return "info"
        unlearnt = height / lost <= self._covered
        if not self._course.is_sudden(self._lowest, height, MUCH if unlearnt else lost):
            self.reading = UNLEARNT * unlearnt
            return "warning" if lost >= 1 else "info"
        self.reading = ""
        lasts = lost >= 1 or self._lasts(time)  # beyond the initial loss there is nothing to wait for
        grave = self._cost >= 2 * self._needed() and lasts and height > CRITICAL * max(abs(self._lowest), self._peak)
        return "critical" if grave else "warning"

    def _lasts(self, time: float) -> bool:
        return not time - self._since < self._after  # a log may have no times

    def _end(self, at: int, text: str, *, accepted: bool = False) -> Detection:
        self._lowest = inf
        self._course.begin()
        return self._rise.end(at, text, accepted=accepted)

    def _report(self, severity: Severity, at: int, step: int, level: float, context: Context) -> Detection:
        than = times(level, self._lowest)
        since = f" since its lowest at step {number(self._lowest_at)}"
        text = f"loss has risen to {number(level)} at step {number(step)}, {than}{since}{context.rate_raised(step)}"
        return self._rise.report(severity, at, text, {"doubtful_from_step": self._lowest_at + 1})
