"""Faults of simulated GPUs, and the times at which they show: ``hot``, ``throttled``, ``xid``, ``lost``, or ``lost:2`` for GPU 2."""

import math
import re
from collections.abc import Iterable

FAULTS = ("hot", "throttled", "xid", "lost")


def faults_by_gpu(faults: Iterable[str], count: int) -> list[frozenset[str]]:
    """Return the faults of each of *count* GPUs; a fault without an index is the last GPU's.

    Raises:
        ValueError: There is no such fault, or no such GPU.
    """
    by_gpu: list[set[str]] = [set() for _ in range(count)]
    for text in faults:
        name, colon, suffix = text.partition(":")
        if name not in FAULTS or not re.fullmatch(r":\d{1,4}" if colon else "", colon + suffix, re.ASCII):
            raise ValueError(f"{text!r} is none of {', '.join(FAULTS)}, with or without :INDEX of the GPU")
        index = int(suffix or max(count - 1, 0))
        if index >= count:
            remedy = (
                f"give an index from 0 to {count - 1}" if count else "set collector.gpu.simulate to the number of GPUs"
            )
            raise ValueError(f"{text!r} is for a GPU that is not simulated; {remedy}")
        by_gpu[index].add(name)
    return [frozenset(names) for names in by_gpu]


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
