"""Percentiles, means and ratios with 95 % intervals, in plain Python: a training may lack SciPy.

**Percentiles.** The p99 of 71 samples is the slowest of them, and twelve equal measurements differ by a quarter in it. A
percentile therefore has a number only from the count of samples on at which both ends of its interval lie among them: 368 for
p99. The ends are fractional order statistics (Hutson 1999), which cover a percentile with 95 % where those of whole ranks
cover more. What differs between processes widens the interval: noise in bursts, and where code and data lie in memory.

**Ratios of two paired variants.** Each round measures all variants in random order, so that without an effect the logarithm of
their ratio is as likely positive as negative, whatever the machine does meanwhile: the interval of its median is that of the
sign test. Two copies of one function differ all the same, by where they lie in memory and caches (Mytkowicz 2009), which no
repetition in the same process averages out: `PLACEMENT` widens each interval.
"""

from collections.abc import Sequence
from math import ceil, exp, floor, inf, isfinite, log, sqrt
from statistics import fmean, median, stdev
from typing import NamedTuple

from trackside.distributions import TAIL, beta_probability, root, t_quantile

LEAST_PARTS = 3  # from which a mean has an interval
PLACEMENT = 0.003  # in 25 processes, copies of a function of 50 us differed by up to 0.19 %
MOST_BETWEEN = log(3)  # wider intervals between processes show nothing


class Interval(NamedTuple):
    """A value with the ends of its 95 % interval; None for what the samples do not show, for a *reason*."""

    value: float | None
    low: float | None
    high: float | None
    reason: str = ""


class VariantRatio(NamedTuple):
    """The ratio of two variants.

    Attributes:
        shift: Its logarithm.
        noise: Half the width of the 95 % interval of the logarithm; *inf* for none.
        rounds: Paired rounds.
    """

    shift: float
    noise: float
    rounds: int

    def ratio(self) -> Interval:
        """Return the ratio with its interval."""
        if not isfinite(self.noise):
            return Interval(exp(self.shift), None, None, f"{self.rounds} of {needed(0.5)} rounds of a process")
        return Interval(exp(self.shift), exp(self.shift - self.noise), exp(self.shift + self.noise))


def mean(center: float, parts: Sequence[float], few: str, least: float = -inf, most: float = inf) -> Interval:
    """Return a mean with the interval that independent parts of it show, within bounds; *few* is why it has none."""
    if len(parts) < LEAST_PARTS:
        return Interval(center, None, None, few)
    half = _half_width(parts)
    return Interval(center, max(least, center - half), min(most, center + half))


def _half_width(values: Sequence[float]) -> float:
    """Return half the width of the interval of the mean of independent values; 0 for a single one."""
    count = len(values)
    return t_quantile(1 - TAIL, count - 1) * stdev(values) / sqrt(count) if count > 1 else 0.0


def needed(share: float) -> int:
    """Return the number of independent samples from which a percentile has an interval."""
    return ceil(log(TAIL) / log(max(share, 1 - share)))


def percentile(series: Sequence[Sequence[float]], share: float) -> Interval:
    """Return a percentile of positive samples; the interval contains what differs between several processes.

    Args:
        series: Samples of one process each.
        share: Share of samples below the percentile, such as 0.99.
    """
    samples = sorted(value for values in series for value in values)
    if len(samples) < needed(share):
        return Interval(None, None, None, f"{len(samples)} of {needed(share)} samples")
    value, (low, high) = _quantile(samples, share), _ends(samples, share)
    own = [log(_quantile(sorted(values), share)) for values in series if values]
    between = _half_width(own)
    if between > MOST_BETWEEN:
        return Interval(value, None, None, f"{len(own)} processes differ too much")
    return Interval(value, min(low, value * exp(-between)), max(high, value * exp(between)))


def _quantile(samples: Sequence[float], share: float) -> float:
    """Return a quantile of sorted samples, interpolated."""
    return _at_rank(samples, 1 + share * (len(samples) - 1))


def _ends(samples: Sequence[float], share: float) -> tuple[float, float]:
    """Return the ends of the interval of a quantile, of as many sorted samples as are `needed`."""
    count = len(samples)

    def end(probability: float) -> float:
        # The fractional rank whose order statistic is below the quantile with this probability.
        rank = root(lambda rank: probability - beta_probability(share, rank, count + 1 - rank), 1e-9, count + 1 - 1e-9)
        return _at_rank(samples, rank)

    return end(1 - TAIL), end(TAIL)


def _at_rank(samples: Sequence[float], rank: float) -> float:
    rank = min(max(rank, 1.0), float(len(samples)))
    below = floor(rank)
    above = min(below + 1, len(samples))
    return samples[below - 1] + (rank - below) * (samples[above - 1] - samples[below - 1])


def paired(values: Sequence[float], others: Sequence[float]) -> VariantRatio:
    """Return the ratio of positive values of the same rounds of one process."""
    shifts = sorted(log(one / other) for one, other in zip(values, others, strict=True))
    center = median(shifts)
    if len(shifts) < needed(0.5):
        return VariantRatio(center, inf, len(shifts))
    low, high = _ends(shifts, 0.5)
    return VariantRatio(center, max(high - center, center - low) + PLACEMENT, len(shifts))


def pooled(effects: Sequence[VariantRatio]) -> VariantRatio:
    """Return the effect over several processes: both what differs between them and the noise within each count."""
    effects = [effect for effect in effects if isfinite(effect.noise)] or effects
    shifts = [effect.shift for effect in effects]
    within = sqrt(fmean(effect.noise**2 for effect in effects) / len(effects))
    return VariantRatio(fmean(shifts), max(within, _half_width(shifts)), sum(effect.rounds for effect in effects))
