"""Detect a number that stands out above those before it, as a person who sees the curve would.

The level is the median of the last seven numbers: few, so that it follows a falling curve. The noise comes from the last
128 distances to the level: many, so that it is stable. The median distance is subtracted first, because on a falling curve
all numbers lie below the level. The larger the jump relative to the level, the fewer deviations from the noise it needs.
The law was fitted to people's labels of real training logs. Where such jumps come often, they are noise.
"""

from __future__ import annotations

from collections import deque
from math import inf
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.detectors.base import Test
from trackside_daemon.detectors.settings import DEFAULTS
from trackside_daemon.model.robust import NORMAL, SortedWindow

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Number of samples in: the level; the noise; the recent noise. As many numbers as a level has are needed for it, and as many
# distances for a noise: the 15th number can be a jump.
NEAR, USUAL, RECENT = 7, 128, 24

# Pairs of robust standard deviations above the level and fraction of the level, as multiples of the thresholds, which are
# 0.85 of those of the labels: people saw both sides of a jump, the detector sees one. A jump reaches one pair.
LAW = ((1.0, 1.0), (1.5, 0.5))

CROSSING = 2.5  # the same for the deviations where the level crosses zero: a fraction of it means nothing there

GREAT = (0.75 / DEFAULTS.loss_spike_ratio, 2.0)
"""A jump that is obvious by the last 24 distances: multiple of the fraction of the level, and factor over the largest of them.

It catches what the 128 distances hide when the noise was larger a while ago.
"""

# A jump must be larger, by this factor, than the seventh largest of the last 64 blocks of 8 distances: a series with many
# outliers has them by nature, as diffusion, flows and small batches do. Blocks, because a jump may last.
UNLIKE, LIKE = 1.5, 7
BLOCK, BLOCKS = 8, 64

# Noise that grew by this factor in the last 12 distances replaces the older one, as after a change of the learning
# rate.
GROWN, SHORTLY = 2.5, 12


class Jump(NamedTuple):
    """A number that stands out.

    Attributes:
        before: The level before it.
        noise: A robust standard deviation of the numbers before it.
        height: The distance above the level.
    """

    before: float
    noise: float
    height: float


class Jumps:
    """The jumps in one series of finite numbers; about 1.5 µs per number.

    Args:
        scales: Robust standard deviations by which a number must stand out.
        ratio: Fraction of the level by which it must stand out.
    """

    def __init__(self, *, scales: float, ratio: float) -> None:
        self._law = tuple((scales * least, ratio * fraction) for least, fraction in LAW)
        self._crossing = scales * CROSSING
        self._great = ratio * GREAT[0]
        self._near = SortedWindow(NEAR)
        self._usual = SortedWindow(USUAL)
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._peaks = SortedWindow(BLOCKS)
        self._peak = -inf
        self._count = 0
        self._judged: tuple[int, list[Test]] = (0, [])
        """The count after the last number that was near a jump, and its tests."""

    def add(self, value: float) -> Jump | None:
        """Add the next number and return its jump, if it is one."""
        near, jump = self._near, None
        if len(near.ordered) == NEAR:
            before = near.median()
            height = value - before
            if height > self._law[-1][1] * abs(before) and len(self._recent) >= NEAR:
                jump = self._judge(before, height, value)
            self._usual.add(height)
            self._recent.append(height)
            self._peak = max(self._peak, height)
            self._count += 1
            if self._count % BLOCK == 0:
                self._peaks.add(self._peak)
                self._peak = -inf
        near.add(value)
        return jump

    def clear(self) -> None:
        """Forget all numbers."""
        self._near.clear()
        self._usual.clear()
        self._recent.clear()
        self._peaks.clear()
        self._peak = -inf

    def explain(self) -> Iterator[Test]:
        """Yield the tests of the last number, as far as they were needed."""
        if len(self._recent) <= NEAR:
            yield Test("samples", len(self._near) + len(self._recent), 2 * NEAR)
            return
        height = self._recent[-1]
        before = self._near.arrived[-1] - height
        yield Test("rise above the level", height, self._law[-1][1] * abs(before))
        if self._judged[0] == self._count:
            yield from self._judged[1]

    def _judge(self, before: float, height: float, value: float) -> Jump | None:
        usual = self._usual
        centre, noise = usual.median(), usual.spread()
        tests = [Test("rise, with the noise of 128 samples", height - centre, self._law[0][0] * noise)]
        self._judged = self._count + 1, tests
        if height - centre < self._law[0][0] * noise and height < self._great * abs(before):
            return None
        peaks = self._peaks.ordered
        if len(peaks) >= LIKE:  # else few jumps are known, and none is usual
            tests.append(Test("rise, with those of recent blocks", height, UNLIKE * peaks[-LIKE]))
            if height < UNLIKE * peaks[-LIKE]:
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
        tests.append(Test("standard deviations, with the latest noise", deviations, needed))
        if deviations >= needed or self._is_great(before, height, centre, lately):
            return Jump(before, noise, height)
        return None

    def _is_great(self, before: float, height: float, centre: float, lately: list[float]) -> bool:
        if self._near.ordered[0] <= 0 or height < self._great * before or height < GREAT[1] * max(self._recent):
            return False
        return height - centre >= self._law[0][0] * NORMAL * median(lately)


def last_digit(values: Sequence[float]) -> float:
    """Return the last decimal place that the numbers have, which is the least noise of a rounded loss; 0 if it is small."""
    return next((10.0**-places for places in range(1, 7) if all(round(one, places) == one for one in values)), 0.0)
