"""Quantiles and probabilities of distributions, in plain Python: neither a training nor a daemon needs SciPy for them."""

from collections.abc import Callable
from math import exp, isfinite, lgamma, log

TAIL = 0.025  # at each end of a 95 % interval


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
    """Return the exact 95 % interval of a proportion (Clopper and Pearson 1934)."""
    low = 0.0 if not hits else root(lambda p: beta_probability(p, hits, count - hits + 1) - TAIL, 0.0, 1.0)
    high = 1.0 if hits == count else root(lambda p: beta_probability(p, hits + 1, count - hits) - (1 - TAIL), 0.0, 1.0)
    return low, high
