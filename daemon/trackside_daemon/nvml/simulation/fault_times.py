"""Times at which the faults of a simulated GPU show."""

from __future__ import annotations

import math

XID = 94  # uncorrected memory error that ends only the program that met it

XID_SECONDS = 60.0
# Period of a lost GPU: it is up in the first half and lost in the second, so that both can be seen.
LOST_SECONDS = 240.0


def is_lost(faults: frozenset[str], now: float) -> bool:
    """Return whether the GPU is off the bus at *now*."""
    return "lost" in faults and now % LOST_SECONDS >= LOST_SECONDS / 2


def xids(faults: frozenset[str], now: float) -> int:
    """Return the number of Xid errors up to *now*, one per minute."""
    return math.floor(now / XID_SECONDS) if "xid" in faults else 0
