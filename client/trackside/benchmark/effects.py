"""The ratio of two paired variants, with an interval that holds wherever the measurement ends.

Each round measures all variants in random order, so that without an effect the logarithm of their ratio is as likely
positive as negative, whatever the machine does meanwhile. The signed-rank test inverted (Hodges and Lehmann 1963) is exact
for that, and outliers hardly move it. To end when an interval is narrow, or when somebody has seen enough, would make too
many intervals miss; so the intervals are those of a group-sequential test (Pocock 1977) with `LOOKS`. Two copies of one
function differ all the same, by where they lie in memory and caches (Mytkowicz 2009), which no repetition in the same
process averages out: `PLACEMENT` widens each interval.
"""

from __future__ import annotations

from bisect import bisect_right
from math import exp, inf, log, sqrt
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING, NamedTuple

from trackside.benchmark.distributions import root, t_quantile

if TYPE_CHECKING:
    from collections.abc import Sequence

FIRST_LOOK = 16  # rounds
LOOKS = 8  # most looks at the intervals, each after twice as many rounds as the one before
LOOK_Z = 2.65  # by simulation: the largest of 8 looks at a normal sum, each with twice the samples, is beyond with 5 %
PLACEMENT = 0.003  # in 25 processes, copies of a function of 50 us differed by up to 0.19 %
MOST_ROUNDS = FIRST_LOOK * 2 ** (LOOKS - 1)


class Effect(NamedTuple):
    """The ratio of a variant to the reference, with a 95 % interval; a noise of *inf* has none.

    Attributes:
        shift: Logarithm of the ratio.
        noise: Half the width of its interval.
        rounds: Paired rounds.
    """

    shift: float
    noise: float
    rounds: int

    @property
    def ratio(self) -> float:
        """The ratio."""
        return exp(self.shift)

    @property
    def low(self) -> float:
        """The lower end of its interval."""
        return exp(self.shift - self.noise)

    @property
    def high(self) -> float:
        """The upper end of its interval."""
        return exp(min(700.0, self.shift + self.noise))

    @property
    def is_different(self) -> bool:
        """True if the interval excludes an equal ratio."""
        return abs(self.shift) > self.noise


def paired(variant: Sequence[float], reference: Sequence[float]) -> Effect:
    """Return the effect of the rounds of one process; values are positive."""
    shifts = sorted(log(one / other) for one, other in zip(variant, reference, strict=True))
    count = len(shifts)
    if count < FIRST_LOOK:
        return Effect(median(shifts) if shifts else 0.0, inf, count)
    pairs = count * (count + 1) / 2
    margin = LOOK_Z * sqrt(pairs * (2 * count + 1) / 12)
    center, low, high = (_walsh_quantile(shifts, pairs / 2 + part) for part in (0.0, -margin, margin))
    return Effect(center, max(high - center, center - low) + PLACEMENT, count)


def pooled(effects: Sequence[Effect]) -> Effect:
    """Return the effect over several processes: both what differs between them and the noise within each count."""
    if len(effects) == 1:
        return effects[0]
    count = len(effects)
    shifts = [effect.shift for effect in effects]
    within = sqrt(fmean(effect.noise**2 for effect in effects) / count)
    between = t_quantile(0.975, count - 1) * stdev(shifts) / sqrt(count)
    return Effect(fmean(shifts), max(within, between), sum(effect.rounds for effect in effects))


def _walsh_quantile(shifts: Sequence[float], wanted: float) -> float:
    """Return what *wanted* of the means of all pairs of sorted shifts are below."""
    if shifts[0] == shifts[-1]:
        return shifts[0]

    def below(mean: float) -> float:
        # Of each pair once: with itself, and with those after it.
        return sum(max(0, bisect_right(shifts, 2 * mean - one) - place) for place, one in enumerate(shifts))

    return root(lambda mean: below(mean) - wanted, shifts[0], shifts[-1])
