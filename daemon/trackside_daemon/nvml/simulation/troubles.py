"""What can ail a simulated GPU: ``hot``, ``throttled``, ``xid``, ``lost``, or ``lost:2`` for the GPU with index 2."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

TROUBLES = ("hot", "throttled", "xid", "lost")
XID = 94
"""An uncorrected memory error that cost only the program that met it."""

XID_SECONDS = 60.0
LOST_SECONDS = 240.0
"""A GPU with the trouble is there for the first half of this time and lost for the second, so that both are seen."""


def assigned(troubles: Iterable[str], count: int) -> list[frozenset[str]]:
    """The troubles of each of *count* GPUs; one without an index is the last GPU's.

    Raises:
        ValueError: There is no such trouble, or no such GPU.
    """
    found: list[set[str]] = [set() for _ in range(count)]
    for written in troubles:
        name, _, where = written.partition(":")
        if name not in TROUBLES:
            raise ValueError(f"no simulated trouble {written!r}; there are {', '.join(TROUBLES)}")
        index = where or str(count - 1)
        if not (index.isascii() and index.isdigit() and int(index) < count):
            raise ValueError(
                f"trouble {written!r} is of a GPU that is not simulated; give an index from 0 to {count - 1}"
            )
        found[int(index)].add(name)
    return [frozenset(one) for one in found]


def is_lost(ails: frozenset[str], now: float) -> bool:
    """Whether the GPU is off the bus at *now*."""
    return "lost" in ails and now % LOST_SECONDS >= LOST_SECONDS / 2


def xids(ails: frozenset[str], now: float) -> int:
    """Xid errors that it has had by *now*, one a minute."""
    return math.floor(now / XID_SECONDS) if "xid" in ails else 0
