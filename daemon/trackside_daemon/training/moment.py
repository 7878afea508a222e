"""When something was said."""

from __future__ import annotations

from typing import NamedTuple


class Moment(NamedTuple):
    """When something arrived, by the daemon's clocks, in seconds."""

    wall: float
    monotonic: float
