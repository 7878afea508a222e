"""One moment by the daemon's two clocks."""

from __future__ import annotations

import time
from typing import NamedTuple


class Moment(NamedTuple):
    """The arrival of a message, in seconds of the daemon's clocks.

    Attributes:
        wall: Unix time.
        monotonic: Time of the monotonic clock, which stands still while the machine sleeps.
        asleep: For how long the machine has slept since its start.
    """

    wall: float
    monotonic: float
    asleep: float = 0.0

    @classmethod
    def now(cls) -> Moment:
        """Return this moment."""
        # macOS has only the other one, which goes on during sleep, unlike Python's monotonic clock.
        clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
        monotonic = time.monotonic()
        return cls(time.time(), monotonic, max(0.0, time.clock_gettime(clock) - monotonic))
