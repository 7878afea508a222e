"""Percentiles with intervals from order statistics, and none where there are too few samples.

The p99 of 71 samples is the slowest of them, and twelve equal measurements differ by a quarter in it. A percentile therefore
has a number only from the count of samples on at which both ends of its interval lie among them: 368 for p99. The ends are
fractional order statistics (Hutson 1999), which cover a percentile with 95 % where those of whole ranks cover more. Noise
of a machine comes in bursts, so that samples weigh less than independent ones: where those above the percentile are crowded,
the interval is that of fewer samples.
"""

from __future__ import annotations

from itertools import pairwise
from math import ceil, exp, floor, log, sqrt
from statistics import fmean, stdev
from typing import TYPE_CHECKING, NamedTuple

from trackside.benchmark.distributions import beta_probability, root, t_quantile

if TYPE_CHECKING:
    from collections.abc import Sequence

TAIL = 0.025  # at each end of a 95 % interval
BLOCKS = 20  # consecutive parts of the samples whose shares above a percentile are compared
MOST_BETWEEN = log(3)  # wider intervals between processes show nothing
NORMAL_95 = 1.645  # quantile of the normal distribution


class Interval(NamedTuple):
    """A value with the ends of its 95 % interval; None for what the samples do not show, for a *reason*."""

    value: float | None
    low: float | None
    high: float | None
    reason: str = ""


def needed(share: float) -> int:
    """Return the number of independent samples from which a percentile has an interval."""
    return ceil(log(TAIL) / log(max(share, 1 - share)))


def percentile(series: Sequence[Sequence[float]], share: float) -> Interval:
    """Return a percentile of positive samples; the interval contains what differs between several processes.

    Args:
        series: Samples of one process each, in their order.
        share: Share of samples below the percentile, such as 0.99.
    """
    samples = sorted(value for values in series for value in values)
    count = len(samples)
    if count < needed(share):
        return Interval(None, None, None, f"{count} of {needed(share)} samples")
    value = at_share(samples, share)
    effective = count / _inflation(series, share)
    low, high = (_rank(share, effective, tail) for tail in (1 - TAIL, TAIL))
    if low < 1 or high > effective:
        return Interval(None, None, None, f"{count} samples in bursts weigh like {effective:.0f} of {needed(share)}")
    scale = (count + 1) / (effective + 1)
    own = [log(at_share(sorted(values), share)) for values in series if values]
    between = t_quantile(1 - TAIL, len(own) - 1) * stdev(own) / sqrt(len(own)) if len(own) > 1 else 0.0
    if between > MOST_BETWEEN:
        return Interval(value, None, None, f"{len(own)} processes differ too much")
    ends = _at_rank(samples, low * scale), _at_rank(samples, high * scale)
    return Interval(value, min(ends[0], value * exp(-between)), max(ends[1], value * exp(between)))


def at_share(samples: Sequence[float], share: float) -> float:
    """Return a quantile of sorted samples, interpolated."""
    return _at_rank(samples, 1 + share * (len(samples) - 1))


def _rank(share: float, count: float, probability: float) -> float:
    """Return the fractional rank whose order statistic is below the percentile with this probability."""
    return root(lambda rank: probability - beta_probability(share, rank, count + 1 - rank), 1e-9, count + 1 - 1e-9)


def _at_rank(samples: Sequence[float], rank: float) -> float:
    rank = min(max(rank, 1.0), float(len(samples)))
    below = floor(rank)
    above = min(below + 1, len(samples))
    return samples[below - 1] + (rank - below) * (samples[above - 1] - samples[below - 1])


def _inflation(series: Sequence[Sequence[float]], share: float) -> float:
    """Return by how much more the share of samples above a percentile varies than that of independent ones.

    Two views count, if independent samples would show them with less than 5 %: neighbours that are alike (Bayley and
    Hammersley 1946), and consecutive blocks that differ (the dispersion test, Fisher 1950).
    """
    above = []
    for values in filter(None, series):
        level = at_share(sorted(values), share)
        above.append([value > level for value in values])
    total, count = sum(map(sum, above)), sum(map(len, above))
    if not 0 < total < count:
        return 1.0
    blocks = [block for values in above for block in _split(values, max(2, min(BLOCKS, total) // len(above)))]
    # Correlations that last longer than a block are those between blocks.
    return max(_dispersion(blocks, total / count), min(_persistence(above, total / count), count / BLOCKS))


def _split(values: Sequence[bool], parts: int) -> list[Sequence[bool]]:
    edges = [len(values) * number // parts for number in range(parts + 1)]
    return [values[begin:end] for begin, end in pairwise(edges) if end > begin]


def _persistence(groups: Sequence[Sequence[bool]], share: float) -> float:
    pairs = [(one - share) * (other - share) for group in groups for one, other in pairwise(group)]
    correlation = min(0.999, fmean(pairs) / (share * (1 - share))) if pairs else 0.0
    return (1 + correlation) / (1 - correlation) if correlation > NORMAL_95 / sqrt(len(pairs) or 1) else 1.0


def _dispersion(groups: Sequence[Sequence[bool]], share: float) -> float:
    freedom = len(groups) - 1
    if freedom < 1:
        return 1.0
    squares = sum((sum(group) - share * len(group)) ** 2 / len(group) for group in groups)
    ratio = squares / (share * (1 - share)) / freedom
    part = 2 / (9 * freedom)  # Wilson and Hilferty 1931
    return ratio if ratio > (1 - part + NORMAL_95 * sqrt(part)) ** 3 else 1.0
