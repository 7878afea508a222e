"""Detect a number that stands out above those before it, as a person who sees the curve would.

The level is the median of the last nine numbers: few, so that it follows a falling curve. The noise comes from the last
128 distances to the level: many, so that it is stable. The median distance is subtracted first, because on a falling curve
all numbers lie below the level. The larger the jump relative to the level, the fewer deviations from the noise it needs.
The law was fitted to people's labels of real training logs.
"""

from __future__ import annotations

from collections import deque
from math import inf
from statistics import median
from typing import NamedTuple

from trackside_daemon.detectors.window import Window

NEAR, USUAL, RECENT = 9, 128, 24  # number of samples in: the level; the noise; the recent noise

LEAST, SETTLED = 5, 8  # numbers needed for a level, and distances needed for a noise: the 14th number can be a jump

EASE = 0.85  # factor on the thresholds of the labels: people saw both sides of a jump, the detector sees one
EASE_AGREED = 0.6  # the same factor when the gradient norm agrees: two signs need less each

# Pairs of robust standard deviations above the level and fraction of the level. A jump reaches one pair.
LAW = ((10.0, 0.20), (15.0, 0.10), (25.0, 0.05))

# The first pair after EASE. Other settings scale all deviations, or all fractions, in proportion.
SCALES, SHARE = EASE * LAW[0][0], EASE * LAW[0][1]

CROSSING = 25.0  # deviations needed where the level crosses zero: a fraction of it means nothing there

GREAT = (0.75, 8.0, 2.0)
"""A jump that is obvious: fraction of the level, deviations of the last 24 distances, factor over the largest of them.

It catches what the 128 distances hide when the noise was larger a while ago.
"""

VAST = 1.5
"""Fraction of the level from which the noise of an obvious jump comes from the changes between numbers.

A level that fell at once leaves distances that are not noise; a change affects only itself.
"""

# Factor over the sixth largest of the last 128 distances: noise with two levels is not a series of jumps.
UNLIKE, LIKE = 1.5, 6

# Noise that grew by this factor in the last 12 distances replaces the older one, as after a change of the learning
# rate.
GROWN, SHORTLY = 2.5, 12

UNSURE = 4.0  # while only n distances are known, the noise is widened by UNSURE / n
_NORMAL = 1.4826  # standard deviations per median distance, for a normal distribution
_OF_CHANGES = _NORMAL / 2**0.5  # standard deviations of one number per median change between two numbers


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

    def __init__(self, *, scales: float = SCALES, ratio: float = SHARE) -> None:
        by, parts = scales / SCALES, ratio / SHARE
        self._law = tuple((by * least, parts * fraction) for least, fraction in LAW)
        self._crossing = by * CROSSING
        self._great = (parts * GREAT[0], by * GREAT[1], GREAT[2])
        self._near = Window(NEAR)
        self._usual = Window(USUAL)
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._changes: deque[float] = deque(maxlen=RECENT)
        self._last = 0.0

    def add(self, value: float, *, agreed: bool) -> Jump | None:
        """Add the next number and return its jump, if it is one; *agreed* when another sign supports it."""
        near, jump = self._near, None
        if len(near.ordered) >= LEAST:
            before = near.median()
            height = value - before
            if height > 0 and len(self._recent) >= SETTLED:
                jump = self._judge(before, height, EASE_AGREED if agreed else EASE)
            self._usual.add(height)
            self._recent.append(height)
            self._changes.append(abs(value - self._last))
        near.add(value)
        self._last = value
        return jump

    def clear(self) -> None:
        """Forget all numbers."""
        self._near.clear()
        self._usual.clear()
        self._recent.clear()
        self._changes.clear()

    def _judge(self, before: float, height: float, ease: float) -> Jump | None:
        if height < ease * self._law[-1][1] * abs(before):
            return None
        usual, count = self._usual, len(self._usual.ordered)
        centre, noise = usual.median(), usual.spread() * (1 + UNSURE / count) / (1 + UNSURE / USUAL)
        if height - centre < ease * self._law[0][0] * noise and height < self._great[0] * abs(before):
            return None
        lately = [abs(other - centre) for other in self._recent]
        if len(lately) >= SHORTLY:
            shortly = _NORMAL * median(lately[-SHORTLY:])
            noise = shortly if shortly > GROWN * noise else noise
        deviations = (height - centre) / noise if noise else inf
        if self._stands_out(before, height, deviations, ease) or self._is_great(
            before, height - centre, height, lately
        ):
            return Jump(before, noise, height)
        return None

    def _stands_out(self, before: float, height: float, deviations: float, ease: float) -> bool:
        if height < UNLIKE * self._usual.ordered[-LIKE]:
            return False
        if self._near.ordered[0] <= 0 <= self._near.ordered[-1]:
            return deviations >= ease * self._crossing
        part = height / abs(before)
        return any(deviations >= ease * least and part >= ease * fraction for least, fraction in self._law)

    def _is_great(self, before: float, excess: float, height: float, lately: list[float]) -> bool:
        part, deviations, times = self._great
        if self._near.ordered[0] <= 0 or height < part * before or height < times * max(self._recent):
            return False
        noise = _OF_CHANGES * median(self._changes) if height >= VAST * before else _NORMAL * median(lately)
        return excess >= deviations * noise
