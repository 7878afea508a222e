"""When what ails a simulated GPU shows."""

from __future__ import annotations

import math

XID = 94
"""An uncorrected memory error that cost only the program that met it."""

XID_SECONDS = 60.0
LOST_SECONDS = 240.0
"""A GPU with the trouble is there for the first half of this time and lost for the second, so that both are seen."""


def is_lost(ails: frozenset[str], now: float) -> bool:
    """Whether the GPU is off the bus at *now*."""
    return "lost" in ails and now % LOST_SECONDS >= LOST_SECONDS / 2


def xids(ails: frozenset[str], now: float) -> int:
    """Xid errors that it has had by *now*, one a minute."""
    return math.floor(now / XID_SECONDS) if "xid" in ails else 0
