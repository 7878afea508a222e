"""Whether a number stands out above those before it, as a person would say who sees the curve.

What it is compared with is the median of the last nine: short, so that it follows a curve that falls. How far numbers
usually lie from it is read from the last 128 such distances: long, so that the measure is calm. Their median is taken
off first, since on a falling curve all lie below. The more the number stands out relative to its level, the less it
has to stand out of its noise: the law is that of the labels of the real logs of shared/data (tuned on its ``dev``).
"""

from __future__ import annotations

from collections import deque
from math import inf
from statistics import median
from typing import NamedTuple

from trackside_daemon.detectors.window import Window

NEAR, USUAL, RECENT = 9, 128, 24
"""Of how many numbers: the level; the noise; the noise of late."""

LEAST, SETTLED = 5, 8
"""Numbers before there is a level, and distances from it before there is a noise: the 14th can be a jump."""

EASE = 0.85
"""Of the labels' thresholds: what is seen later from both sides is known less well from one."""

EASE_AGREED = 0.6
"""The same when the gradient norm agrees: two signs need less each."""

LAW = ((10.0, 0.20), (15.0, 0.10), (25.0, 0.05))
"""Robust standard deviations above the level, and the part of the level, of which one pair must be reached."""

SCALES, SHARE = EASE * LAW[0][0], EASE * LAW[0][1]
"""What that comes to for the first pair; with others all deviations, or all parts of the level, are in proportion."""

CROSSING = 25.0
"""Deviations for a number whose level crosses nought, where parts of it mean nothing."""

GREAT = (0.75, 8.0, 2.0)
"""Part of the level, deviations of the last 24 alone, and times the largest of these: a jump at first sight.

It is for what the 128 hide: noise that was greater a while ago.
"""

VAST = 1.5
"""Part of the level from which the noise for that is read from the changes between numbers.

A level that fell at once leaves distances behind that are no noise, and a change hides only itself.
"""

UNLIKE, LIKE = 1.5, 6
"""Times the sixth largest of the last 128 distances: noise with two levels is no row of jumps."""

GROWN, SHORTLY = 2.5, 12
"""Noise that has grown by so much in the last 12 distances counts as it is now, as after a learning rate's change."""

UNSURE = 4.0
"""How much wider the noise is taken while it is known from n distances only: by this over n."""

_NORMAL = 1.4826
"""Standard deviations in a median distance, for a normal distribution."""

_OF_CHANGES = _NORMAL / 2**0.5
"""Standard deviations of one number in the median change from one number to the next."""


class Jump(NamedTuple):
    """A number that stands out.

    Attributes:
        before: The level that it stands out of.
        noise: A robust standard deviation of the numbers before.
        height: Above the level.
    """

    before: float
    noise: float
    height: float


class Jumps:
    """Follows one series of finite numbers; about 1.5 µs a number.

    Args:
        scales: Robust standard deviations by which a number has to stand out.
        ratio: The part of the level by which it has to.
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
        """Whether the next number is a jump; *agreed* when another sign says so too."""
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
        """Begin anew."""
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
