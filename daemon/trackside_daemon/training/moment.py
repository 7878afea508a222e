"""One moment by the daemon's two clocks."""

from __future__ import annotations

from typing import NamedTuple


class Moment(NamedTuple):
    """The arrival of a message, in seconds of the daemon's clocks; *wall* is Unix time."""

    wall: float
    monotonic: float
