"""The last samples, in the order of their size too: what medians and quartiles of late are read from."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque


class Window:
    """The last *size* numbers; adding one costs O(log size) comparisons and a move of memory.

    Attributes:
        ordered: They, the smallest first.
    """

    __slots__ = ("_size", "arrived", "ordered")

    def __init__(self, size: int) -> None:
        self._size = size
        self.arrived: deque[float] = deque()
        self.ordered: list[float] = []

    def __len__(self) -> int:
        return len(self.ordered)

    def add(self, value: float) -> None:
        """One more, and the oldest goes when there are too many; *value* is finite."""
        insort(self.ordered, value)
        self.arrived.append(value)
        if len(self.ordered) > self._size:
            del self.ordered[bisect_left(self.ordered, self.arrived.popleft())]

    def median(self) -> float:
        """The middle one, or the mean of the two."""
        ordered, half = self.ordered, len(self.ordered) // 2
        return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2

    def spread(self) -> float:
        """A robust standard deviation: the distance of the quartiles over that of a normal distribution's."""
        count = len(self.ordered)
        return (self.ordered[3 * count // 4] - self.ordered[count // 4]) / 1.349

    def clear(self) -> None:
        """Begin anew."""
        self.arrived.clear()
        self.ordered.clear()
