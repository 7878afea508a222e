"""Statistics that single outliers do not move."""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from statistics import median

NORMAL = 1.4826  # standard deviations per median distance from the median, for a normal distribution


def middle_and_spread(values: Collection[float]) -> tuple[float, float]:
    """Return the median of *values*, and a standard deviation by their median distance from it; there must be one."""
    middle = median(values)
    return middle, NORMAL * median(abs(value - middle) for value in values)


def last_digit(values: Sequence[float]) -> float:
    """Return the last decimal place that the numbers have, which is the least noise of a rounded series; 0 if it is small."""
    return next((10.0**-places for places in range(1, 7) if all(round(one, places) == one for one in values)), 0.0)


class SortedWindow:
    """The last *size* numbers, sorted, or some that are *ordered*. Adding one costs O(log size) comparisons and one move of memory.

    Attributes:
        arrived: The numbers in order of arrival.
        ordered: The same numbers, the smallest first.
    """

    __slots__ = ("_size", "arrived", "ordered")

    def __init__(self, size: int, ordered: Iterable[float] = ()) -> None:
        self._size = size
        self.arrived: deque[float] = deque()
        self.ordered = list(ordered)

    def __len__(self) -> int:
        return len(self.ordered)

    def add(self, value: float) -> None:
        """Add a finite number, and drop the oldest when there are more than *size*."""
        ordered, arrived = self.ordered, self.arrived
        insort(ordered, value)
        arrived.append(value)
        if len(ordered) > self._size:
            del ordered[bisect_left(ordered, arrived.popleft())]

    def median(self) -> float:
        """Return the median; the window must not be empty."""
        ordered, half = self.ordered, len(self.ordered) // 2
        return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2

    def spread(self) -> float:
        """Return a robust standard deviation: the distance of the quartiles, in units of the normal distribution's."""
        count = len(self.ordered)
        # The quartiles of a normal distribution are 1.349 standard deviations apart.
        return (self.ordered[3 * count // 4] - self.ordered[count // 4]) / 1.349

    def clear(self) -> None:
        """Forget all numbers."""
        self.arrived.clear()
        self.ordered.clear()
