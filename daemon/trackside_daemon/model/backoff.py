"""Exponential back-off."""

import random


class Backoff:
    """Delays in seconds that double with each failure, from *first* to at most *last*.

    With *jitter* each is shortened by up to a half at random, so that many daemons do not retry at the same moment.
    """

    def __init__(self, first: float, last: float, *, jitter: bool = False) -> None:
        self._first = first
        self._last = last
        self._jitter = jitter
        self._next = first

    def next_delay(self, *, longest: bool = False) -> float:
        """Return the delay after one more failure, in seconds; the *longest* one if only a person can fix the cause."""
        delay = self._last if longest else self._next
        self._next = min(2 * delay, self._last)
        return delay * (1 - random.random() / 2) if self._jitter else delay  # noqa: S311  no secret

    def reset(self) -> None:
        """Start again at the first delay, after a success."""
        self._next = self._first
