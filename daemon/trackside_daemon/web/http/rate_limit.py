"""A rate limit for requests."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class TokenBucket:
    """A token bucket: *burst* tokens at most, and one more each *interval*.

    Args:
        interval: Seconds.
        burst: How many requests may come at once.
        clock: Returns seconds from any starting point.
    """

    def __init__(self, interval: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval = interval
        self._burst = burst
        self._clock = clock
        self._tokens = float(burst)
        self._filled = clock()

    def try_acquire(self) -> bool:
        """Remove a token and return True; return False when the bucket is empty."""
        # No lock is needed: all requests are checked in the event loop's thread.
        now = self._clock()
        self._tokens = min(float(self._burst), self._tokens + (now - self._filled) / self._interval)
        self._filled = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
