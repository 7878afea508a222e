"""Read the clocks of this machine together."""

import time
from typing import NamedTuple

# A clock that nobody sets and that goes on while the machine sleeps. That of macOS has another name.
_SINCE_BOOT: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

AT_ONCE = 2_000_000  # nanoseconds within which the clocks are read
TRIES = 8


class Clocks(NamedTuple):
    """One moment, in nanoseconds."""

    wall: int  # time since 1970
    monotonic: int  # time of the monotonic clock, which stands still while the machine sleeps
    asleep: int  # for how long the machine has slept since its start


def read_clocks() -> Clocks:
    """Return the present moment; the clocks are read again if this thread was stopped between two of them."""
    for _ in range(TRIES):
        monotonic = time.monotonic_ns()
        wall, since_boot = time.time_ns(), time.clock_gettime_ns(_SINCE_BOOT)
        if time.monotonic_ns() - monotonic < AT_ONCE:
            break
    return Clocks(wall, monotonic, max(0, since_boot - monotonic))
