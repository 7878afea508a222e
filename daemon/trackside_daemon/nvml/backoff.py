"""Exponential back-off."""

from __future__ import annotations


class Backoff:
    """Delays in seconds that double with each failure, from *first* to at most *last*."""

    def __init__(self, first: float, last: float) -> None:
        self._first = first
        self._last = last
        self._next = first

    def next_delay(self) -> float:
        """Return the delay after one more failure, in seconds."""
        delay = self._next
        self._next = min(2 * delay, self._last)
        return delay

    def reset(self) -> None:
        """Start again at the first delay, after a success."""
        self._next = self._first
