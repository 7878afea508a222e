"""Estimate means and differences with intervals from samples that depend on their predecessors.

A training's values are correlated in time, so that n of them weigh less than n independent ones. Medians or means of
consecutive batches are nearly independent (batch means: Law and Kelton, Simulation Modeling and Analysis), and the rest of
the correlation reduces their effective number, n (1 - r) / (1 + r) for a correlation r of neighbours (Bayley and Hammersley
1946).
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import fsum, inf, isfinite, nan, sqrt
from statistics import fmean, median, variance
from typing import NamedTuple

from trackside.distributions import t_quantile

BATCHES = 32  # most batches: enough for an interval, and few enough that each is longer than most correlations
LEAST_BATCHES = 4  # fewer do not show their noise
CONFIDENCE = 0.95
LARGEST = 1e70  # of larger values, the squares of the variances are no floats; those of 32 bits end at 3.4e38


class Estimate(NamedTuple):
    """A mean with its uncertainty."""

    value: float  # the mean
    variance: float = 0.0  # variance of the mean; infinite if the samples do not show it, 0 for an exact value
    freedom: float = inf  # degrees of freedom of the variance

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """Return the ends of the confidence interval; infinite ones if the variance is unknown."""
        half = half_width(self.variance, self.freedom, confidence)
        return self.value - half, self.value + half


def half_width(variance: float, freedom: float, confidence: float = CONFIDENCE) -> float:
    """Return half the width of the confidence interval of a mean with this variance."""
    if not variance:
        return 0.0
    return t_quantile((1 + confidence) / 2, freedom) * sqrt(variance) if isfinite(variance) else inf


def batched(values: Sequence[float], center: Callable[[Sequence[float]], float] = median) -> Estimate:
    """Return the mean of the *center* of consecutive batches of samples, at least one sample."""
    count = min(BATCHES, len(values))
    edges = [len(values) * number // count for number in range(count + 1)]
    batches = [center(values[begin:end]) for begin, end in pairwise(edges)]
    if count < LEAST_BATCHES:
        return Estimate(fmean(batches), inf)
    effective = count * thinning(batches)
    return Estimate(fmean(batches), variance(batches) / effective, max(1.0, effective - 1))


def thinning(values: Sequence[float]) -> float:
    """Return the effective share of samples whose neighbours are correlated; 1 if they are independent."""
    mean = fmean(values)
    rest = [value - mean for value in values]
    square = fsum(one * one for one in rest)
    if not square:
        return 1.0
    correlation = fsum(one * other for one, other in pairwise(rest)) / square
    correlation = min(max(correlation, 0.0), 1 - 2 / len(values))
    return (1 - correlation) / (1 + correlation)


def pooled(runs: Sequence[Estimate]) -> Estimate:
    """Return the mean of several runs; what differs between them shows its uncertainty, which includes that within each."""
    if len(runs) == 1:
        return runs[0]
    values = [run.value for run in runs]
    if not all(map(isfinite, values)):
        return Estimate(sum(values) / len(runs), nan, len(runs) - 1)
    return Estimate(fmean(values), variance(values) / len(runs), len(runs) - 1)


def difference(one: Estimate, other: Estimate) -> Estimate:
    """Return the first mean minus the second, which are independent (Welch 1947)."""
    total = one.variance + other.variance
    if not total or not isfinite(total):
        return Estimate(one.value - other.value, total)
    parts = sum(each.variance**2 / each.freedom for each in (one, other) if each.variance)
    return Estimate(one.value - other.value, total, total**2 / parts if parts else inf)
