"""A loss that jumps and stays up for some samples, and a batch that is hard to learn.

Up to three high samples are a hard batch: real runs have many, and they do no harm. Four make it a spike, if most samples
since the jump are high. Both are information: `LossDiverging` warns if the loss does not come back.

A jump stands out above the losses before it, as a person who sees the curve would say. The level is the median of the last seven:
few, so that it follows a falling curve. The noise comes from the last 128 distances to the level: many, so that it is stable. The
median distance is subtracted first, because on a falling curve all numbers lie below the level. The larger the jump relative to
the level, the fewer deviations from the noise it needs. The law was fitted to people's labels of real training logs. Where such
jumps come often, they are noise. Only what was seen while the level lay at or below the value that a jump reaches counts: a steep
descent, or a blow-up that came back, says nothing about what is usual now.
"""

from collections import deque
from collections.abc import Iterator
from itertools import islice
from math import inf
from statistics import median
from typing import NamedTuple

from trackside_daemon.detectors.base import HUGE, Column, Context, Detection, Episode, Test
from trackside_daemon.detectors.settings import DEFAULTS, DetectorThresholds
from trackside_daemon.model.records import STEP
from trackside_daemon.model.robust import NORMAL, LastSorted, SortedWindow, last_digit, quartile_spread
from trackside_daemon.model.text import factor, number, times

# Number of samples in: the level; the noise; the recent noise. As many numbers as a level has are needed for it, and as many
# distances for a noise: the 15th number can be a jump.
NEAR, USUAL, RECENT = 7, 128, 24

# Pairs of robust standard deviations above the level and fraction of the level, as multiples of the thresholds, which are
# 0.85 of those of the labels: people saw both sides of a jump, the detector sees one. A jump reaches one pair.
LAW = ((1.0, 1.0), (1.5, 0.5))

CROSSING = 2.5  # the same for the deviations where the level crosses zero: a fraction of it means nothing there

GREAT = (0.75 / DEFAULTS.loss_spike_ratio, 2.0)
"""A jump that is obvious by the last 24 distances: multiple of the fraction of the level, and factor over the largest of them.
It catches what the 128 distances hide when the noise was larger a while ago. So many must also count for the noise, else all do.
"""

# A jump must be larger, by this factor, than the seventh largest of the last 64 blocks of 8 distances: a series with many
# outliers has them by nature, as diffusion, flows and small batches do. Blocks, because a jump may last.
UNLIKE, LIKE = 1.5, 7
BLOCK, BLOCKS = 8, 64

# Noise that grew by this factor in the last 12 distances replaces the older one, as after a change of the learning
# rate.
GROWN, SHORTLY = 2.5, 12

MOVED = 2.0  # factor over its own median from which a gradient norm moved together with the loss

SEVERAL = 4  # high samples that are a spike and not a hard batch

# Consecutive samples at the old level that end a spike; samples above it after which it is no longer a spike.
BACK, GIVEN_UP = 5, 64

# Deviations and fraction of the level above which a sample is still high. A spike decays, so it is less than a jump.
ABOVE = 4.0, 0.1


class Jump(NamedTuple):
    """A number that stands out."""

    before: float  # the level before it
    noise: float  # a robust standard deviation of the numbers before it
    height: float  # the distance above the level


class Jumps:
    """The jumps in one series of finite numbers.

    Args:
        scales: Robust standard deviations by which a number must stand out.
        ratio: Fraction of the level by which it must stand out.
    """

    def __init__(self, scales: float, ratio: float) -> None:
        self._law = tuple((scales * least, ratio * fraction) for least, fraction in LAW)
        self._crossing = scales * CROSSING
        self._great = ratio * GREAT[0]
        self._near = SortedWindow(NEAR)
        self._usual = SortedWindow(USUAL)  # distances above the level
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._levels: deque[float] = deque(maxlen=USUAL)  # that of each distance
        self._peaks = LastSorted[tuple[float, float]](BLOCKS)  # the largest distance of each block, and its level
        self._peak = -inf, -inf
        self._count = 0
        self._judged: tuple[int, list[tuple[str, float, float]]] = (0, [])
        """The count after the last number that was near a jump, and its tests."""

    def add(self, value: float) -> Jump | None:
        """Add the next number and return its jump, if it is one."""
        near, jump = self._near, None
        if len(near.ordered) == NEAR:
            before = near.ordered[NEAR // 2]
            height = value - before
            if height > self._law[-1][1] * abs(before) and len(self._recent) >= NEAR:
                jump = self._judge(before, height, value)
            self._usual.add(height)
            self._recent.append(height)
            self._levels.append(before)
            if height > self._peak[0]:
                self._peak = height, before
            self._count += 1
            if self._count % BLOCK == 0:
                self._peaks.add(self._peak)
                self._peak = -inf, -inf
        near.add(value)
        return jump

    def clear(self) -> None:
        """Forget all numbers."""
        for numbers in (self._near, self._usual, self._recent, self._levels, self._peaks):
            numbers.clear()
        self._peak = -inf, -inf

    def explain(self) -> Iterator[Test]:
        """Yield the tests of the last number, as far as they were needed."""
        if len(self._recent) <= NEAR:
            yield Test("samples", len(self._near) + len(self._recent), 2 * NEAR)
            return
        height = self._recent[-1]
        before = self._near.arrived[-1] - height
        yield Test("rise above the level", height, self._law[-1][1] * abs(before))
        if self._judged[0] == self._count:
            yield from (Test(*one) for one in self._judged[1])

    def _judge(self, before: float, height: float, value: float) -> Jump | None:
        tests: list[tuple[str, float, float]] = []
        self._judged = self._count + 1, tests
        peaks = (peak for peak, level in reversed(self._peaks.ordered) if level <= value)
        like = next(islice(peaks, LIKE - 1, None), None)
        if like is not None:  # else few jumps are known, and none is usual
            tests.append(("rise, with those of recent blocks", height, UNLIKE * like))
            if height < UNLIKE * like:
                return None
        usual = self._usual.ordered
        if max(self._levels) > value:  # seldom
            pairs = zip(self._usual.arrived, self._levels, strict=True)
            counting = sorted(one for one, level in pairs if level <= value)
            usual = counting if len(counting) >= RECENT else usual
        centre, noise = median(usual), quartile_spread(usual)
        tests.append(("rise, with the noise of 128 samples", height - centre, self._law[0][0] * noise))
        if height - centre < self._law[0][0] * noise and height < self._great * abs(before):
            return None
        lately = [abs(other - centre) for other in self._recent]
        if len(lately) >= SHORTLY:
            shortly = NORMAL * median(lately[-SHORTLY:])
            noise = shortly if shortly > GROWN * noise else noise
        noise = max(noise, last_digit([*self._near.ordered, value]))
        deviations = (height - centre) / noise if noise else inf
        crosses = self._near.ordered[0] <= 0 <= self._near.ordered[-1]
        law = min(least for least, part in self._law if height > part * abs(before))
        needed = self._crossing if crosses else law
        tests.append(("standard deviations, with the latest noise", deviations, needed))
        high = self._near.ordered[0] > 0 and height >= max(self._great * before, GREAT[1] * max(self._recent))
        if deviations >= needed or (high and height - centre >= self._law[0][0] * NORMAL * median(lately)):
            return Jump(before, noise, height)
        return None


class LossSpike:
    """`LossSpike`: the loss jumps by robust deviations and a ratio of its level, and stays. `LossHardBatch`: a short jump."""

    alerts: tuple[str, ...] = ("LossSpike", "LossHardBatch")

    def __init__(self, thresholds: DetectorThresholds = DEFAULTS) -> None:
        self._jumps = Jumps(thresholds.loss_spike_scales, thresholds.loss_spike_ratio)
        self._batch, self._spike = Episode("LossHardBatch", BACK), Episode("LossSpike", BACK)
        self._begun = Jump(0.0, 0.0, 0.0)
        self._first = 0
        self._high = 0  # samples above the level before, since the jump

    def evaluate(self, column: Column, context: Context) -> Iterator[Detection]:
        """Yield what the next losses show."""
        jumps = self._jumps
        for at, (step, value) in enumerate(zip(column.steps, column.values, strict=True)):
            if not -HUGE < value < HUGE:
                continue
            if context.restarts.get(step):
                for firing in (one for one in (self._batch, self._spike) if one.fires):
                    yield firing.end(at, f"the training has started again at step {number(step)}")
                jumps.clear()
            jump = jumps.add(value)
            if self._batch.fires or self._spike.fires:
                yield from self._follow(at, step, value, context)
            elif jump:
                self._begun, self._first, self._high = jump, step, 1
                yield self._batch.report("info", at, _text(step, value, jump, context))

    def explain(self) -> Iterator[Test]:
        """Yield the tests of the last loss: whether it jumps, and whether a jump is over."""
        firing = next((one for one in (self._batch, self._spike) if one.fires and one.seen), None)
        yield from (
            [Test("samples in a row that are not high", firing.calm, BACK - 1)] if firing else self._jumps.explain()
        )

    def _follow(self, at: int, step: int, value: float, context: Context) -> Iterator[Detection]:
        batch, spike = self._batch, self._spike
        begun, height = self._begun, value - self._begun.before
        high = height > max(ABOVE[0] * begun.noise, ABOVE[1] * abs(begun.before))
        firing = batch if batch.fires else spike
        self._high += high
        if firing.follow(calm=not high):
            was = "a single hard batch" if self._high == 1 else f"{self._high} samples were above"
            yield firing.end(at, f"loss is back at {number(value)} at step {number(step)}: {was}")
        elif high:
            if batch.fires and SEVERAL <= self._high > (firing.seen + 1) / 2:
                yield batch.end(at, "it is more than a single batch")
                text = _text(step, value, begun._replace(height=height), context)
                yield spike.report("info", at, f"{text}, and since step {number(self._first)}", {STEP: self._first})
                spike.seen = batch.seen
            elif firing.seen >= GIVEN_UP:
                yield firing.end(at, f"loss stays at {number(value)}, above the {number(begun.before)} before")


def _text(step: int, value: float, jump: Jump, context: Context) -> str:
    """Return ``loss 5.31 at step 31,219, 2.41 times the 2.2 of the steps before (41 times their noise above)``."""
    text = f"loss {number(value)} at step {number(step)}, {times(value, jump.before, jump.noise)} of the steps before"
    if jump.noise:
        text += f" ({factor(jump.height / jump.noise)} their noise above)"
    moved = context.gradients.get(step)
    if moved is not None:
        verdict = "agrees" if moved >= MOVED else "does not move"
        text += f"; the gradient norm {verdict} ({factor(moved)} its recent level)"
    return text + context.rate_raised(step)
