"""Statistics that single outliers do not move."""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Collection, Sequence
from statistics import median
from typing import Generic, TypeVar

NORMAL = 1.4826  # standard deviations per median distance from the median, for a normal distribution


def middle_and_spread(values: Collection[float]) -> tuple[float, float]:
    """Return the median of *values*, and a standard deviation by their median distance from it; there must be one."""
    middle = median(values)
    return middle, NORMAL * median(abs(value - middle) for value in values)


def last_digit(values: Sequence[float]) -> float:
    """Return the last decimal place that the numbers have, which is the least noise of a rounded series; 0 if it is small."""
    return next((10.0**-places for places in range(1, 7) if all(round(one, places) == one for one in values)), 0.0)


def quartile_spread(ordered: Sequence[float]) -> float:
    """Return a robust standard deviation of sorted numbers: the distance of the quartiles over that of a normal distribution."""
    count = len(ordered)
    # The quartiles of a normal distribution are 1.349 standard deviations apart.
    return (ordered[3 * count // 4] - ordered[count // 4]) / 1.349


T = TypeVar("T", float, tuple[float, float])


class LastSorted(Generic[T]):
    """The last *size* items, sorted. Adding one costs O(log size) comparisons and one move of memory.

    Attributes:
        arrived: The items in order of arrival.
        ordered: The same items, the smallest first.
    """

    __slots__ = ("_size", "arrived", "ordered")

    def __init__(self, size: int) -> None:
        self._size = size
        self.arrived: deque[T] = deque()
        self.ordered: list[T] = []

    def __len__(self) -> int:
        return len(self.ordered)

    def add(self, value: T) -> None:
        """Add a finite item, and drop the oldest when there are more than *size*."""
        ordered, arrived = self.ordered, self.arrived
        insort(ordered, value)
        arrived.append(value)
        if len(ordered) > self._size:
            del ordered[bisect_left(ordered, arrived.popleft())]

    def clear(self) -> None:
        """Forget all items."""
        self.arrived.clear()
        self.ordered.clear()


class SortedWindow(LastSorted[float]):
    """The last *size* numbers, sorted."""

    __slots__ = ()

    def median(self) -> float:
        """Return the median; the window must not be empty."""
        ordered, half = self.ordered, len(self.ordered) // 2
        return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2

    def spread(self) -> float:
        """See `quartile_spread`."""
        return quartile_spread(self.ordered)
