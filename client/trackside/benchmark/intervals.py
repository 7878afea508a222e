"""Percentiles, means, shares and ratios with 95 % intervals, in plain Python: a training may lack SciPy.

**Percentiles.** The p99 of 71 samples is the slowest of them, and twelve equal measurements differ by a quarter in it. A
percentile therefore has a number only from the count of samples on at which both ends of its interval lie among them: 368 for
p99. The ends are fractional order statistics (Hutson 1999), which cover a percentile with 95 % where those of whole ranks
cover more. Noise of a machine comes in bursts, so that samples weigh less than independent ones: where those above the
percentile are crowded, the interval is that of fewer samples.

**Ratios of two paired variants.** Each round measures all variants in random order, so that without an effect the logarithm of
their ratio is as likely positive as negative, whatever the machine does meanwhile. The signed-rank test inverted (Hodges and
Lehmann 1963) is exact for that, and outliers hardly move it. To end when an interval is narrow, or when somebody has seen
enough, would make too many intervals miss; so the intervals are those of a group-sequential test (Pocock 1977) with `LOOKS`.
Two copies of one function differ all the same, by where they lie in memory and caches (Mytkowicz 2009), which no repetition in
the same process averages out: `PLACEMENT` widens each interval.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import pairwise
from math import ceil, exp, floor, inf, isfinite, lgamma, log, sqrt
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TAIL = 0.025  # at each end of a 95 % interval
BLOCKS = 20  # consecutive parts of the samples whose shares above a percentile are compared
MOST_BETWEEN = log(3)  # wider intervals between processes show nothing
NORMAL_95 = 1.645  # quantile of the normal distribution
LEAST_PARTS = 3  # from which a mean has an interval
FIRST_LOOK = 16  # rounds
LOOKS = 8  # most looks at the intervals, each after twice as many rounds as the one before
LOOK_Z = 2.65  # by simulation: the largest of 8 looks at a normal sum, each with twice the samples, is beyond with 5 %
PLACEMENT = 0.003  # in 25 processes, copies of a function of 50 us differed by up to 0.19 %
MOST_ROUNDS = FIRST_LOOK * 2 ** (LOOKS - 1)
LEAST_WARM_UP = 3  # first rounds that never count: compilers, caches and allocators work in them
CERTAINTY = 0.01  # probability of a change point where there is none

T = TypeVar("T")


class Interval(NamedTuple):
    """A value with the ends of its 95 % interval; None for what the samples do not show, for a *reason*."""

    value: float | None
    low: float | None
    high: float | None
    reason: str = ""

    def map(self, change: Callable[[float], float]) -> Interval:
        """Return what a monotonic function makes of it."""
        value = None if self.value is None else change(self.value)
        if self.low is None or self.high is None:
            return Interval(value, None, None, self.reason)
        low, high = sorted((change(self.low), change(self.high)))
        return Interval(value, low, high, self.reason)


class Effect(NamedTuple):
    """The ratio of a variant to the reference.

    Attributes:
        shift: Its logarithm.
        noise: Half the width of the 95 % interval of the logarithm; *inf* for none.
        rounds: Paired rounds.
    """

    shift: float
    noise: float
    rounds: int

    @property
    def is_different(self) -> bool:
        """True if the interval excludes an equal ratio."""
        return abs(self.shift) > self.noise

    def ratio(self) -> Interval:
        """Return the ratio with its interval."""
        if not isfinite(self.noise):
            why = f"{self.rounds} rounds, at least {FIRST_LOOK} of a process are needed"
            return Interval(exp(self.shift), None, None, why)
        low, high = (
            max(-700.0, self.shift - self.noise),
            min(700.0, self.shift + self.noise),
        )  # of what has an exponential
        return Interval(exp(self.shift), exp(low), exp(high))


def root(rising: Callable[[float], float], low: float, high: float) -> float:
    """Return where a rising function crosses zero between two bounds, by bisection."""
    while high - low > 1e-7 * (1 + abs(low)):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return (low + high) / 2


def beta_probability(x: float, a: float, b: float) -> float:
    """Return the regularized incomplete beta function (DLMF 8.17.22, by the method of Lentz)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - beta_probability(1 - x, b, a)
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log(1 - x)) / a
    fraction, above, below = 1.0, 1.0, 0.0
    for number in range(400):
        half = number // 2
        if not number:
            factor = 1.0
        elif number % 2:
            factor = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1))
        else:
            factor = half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))
        below = 1 / (1 + factor * below)
        above = 1 + factor / above
        fraction *= above * below
        if abs(1 - above * below) < 1e-12 and number:
            break
    return front * (fraction - 1)


def t_quantile(share: float, freedom: float) -> float:
    """Return the quantile of Student's t distribution for a share above one half."""
    return root(lambda t: 1 - p_value(t, freedom) / 2 - share, 0.0, 1e4)


def p_value(t: float, freedom: float) -> float:
    """Return the two-sided p-value of a t statistic."""
    freedom = min(freedom, 1e6)
    return beta_probability(freedom / (freedom + t * t), freedom / 2, 0.5) if isfinite(t) else 0.0


def proportion_interval(hits: int, count: int) -> tuple[float, float]:
    """Return the exact interval of a proportion (Clopper and Pearson 1934)."""
    low = 0.0 if not hits else root(lambda p: beta_probability(p, hits, count - hits + 1) - TAIL, 0.0, 1.0)
    high = 1.0 if hits == count else root(lambda p: beta_probability(p, hits + 1, count - hits) - (1 - TAIL), 0.0, 1.0)
    return low, high


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
    between = _half_width(own)
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
    blocks = [block for values in above for block in split(values, max(2, min(BLOCKS, total) // len(above)))]
    # Correlations that last longer than a block are those between blocks.
    return max(_dispersion(blocks, total / count), min(_persistence(above, total / count), count / BLOCKS))


def split(values: Sequence[T], parts: int) -> list[Sequence[T]]:
    """Return consecutive parts of about the same length, none of them empty."""
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
    effects = [effect for effect in effects if isfinite(effect.noise)] or effects
    shifts = [effect.shift for effect in effects]
    within = sqrt(fmean(effect.noise**2 for effect in effects) / len(effects))
    return Effect(fmean(shifts), max(within, _half_width(shifts)), sum(effect.rounds for effect in effects))


def _walsh_quantile(shifts: Sequence[float], wanted: float) -> float:
    """Return what *wanted* of the means of all pairs of sorted shifts are below."""
    if shifts[0] == shifts[-1]:
        return shifts[0]

    def below(mean: float) -> float:
        # Of each pair once: with itself, and with those after it.
        return sum(max(0, bisect_right(shifts, 2 * mean - one) - place) for place, one in enumerate(shifts))

    return root(lambda mean: below(mean) - wanted, shifts[0], shifts[-1])


def warm_up(durations: Sequence[float]) -> int:
    """Return how many of the first rounds are warm-up: those before the last slower part in the first half.

    A change point is where the ranks before and after differ most (Pettitt 1979), so that single outliers make none.

    Args:
        durations: Duration of each round, in order.
    """
    begin = min(LEAST_WARM_UP, len(durations))
    while True:
        rest = durations[begin:]
        count = len(rest)
        ordered = sorted(rest)
        score, best, change = 0.0, 0.0, 0
        for place, value in enumerate(rest, 1):
            score += bisect_left(ordered, value) + bisect_right(ordered, value) - count
            if score > best and begin + place <= len(durations) / 2:
                best, change = score, place
        if not change or best < sqrt(-log(CERTAINTY) * (count**3 + count**2) / 6):
            return begin
        begin += change
