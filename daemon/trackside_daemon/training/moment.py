"""One moment by the daemon's two clocks."""

from __future__ import annotations

from typing import NamedTuple

from trackside.environment.clocks import read_clocks


class Moment(NamedTuple):
    """The arrival of a message, in seconds of the daemon's clocks."""

    wall: float  # Unix time
    monotonic: float  # time of the monotonic clock, which stands still while the machine sleeps
    asleep: float = 0.0  # for how long the machine has slept since its start

    @classmethod
    def now(cls) -> Moment:
        """Return this moment."""
        wall, monotonic, asleep = read_clocks()
        return cls(wall / 1e9, monotonic / 1e9, asleep / 1e9)
