"""Waits that double from one failure to the next."""

from __future__ import annotations


class Backoff:
    """Seconds to wait after each failure, from *first*, doubling, to *last*."""

    def __init__(self, first: float, last: float) -> None:
        self._first, self._last = first, last
        self._next = first

    def wait(self) -> float:
        """After one more failure."""
        wait, self._next = self._next, min(2 * self._next, self._last)
        return wait

    def reset(self) -> None:
        """It has worked."""
        self._next = self._first
