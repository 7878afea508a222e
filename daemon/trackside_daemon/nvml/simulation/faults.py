"""Faults of simulated GPUs: ``hot``, ``throttled``, ``xid``, ``lost``, or ``lost:2`` for the GPU with index 2."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
