"""Statistics that single outliers do not move."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

NORMAL = 1.4826  # standard deviations per median distance from the median, for a normal distribution


def middle_and_spread(values: Collection[float]) -> tuple[float, float]:
    """Return the median of *values*, and a standard deviation by their median distance from it; there must be one."""
    middle = median(values)
    return middle, NORMAL * median(abs(value - middle) for value in values)
