"""What can ail a simulated GPU: ``hot``, ``throttled``, ``xid``, ``lost``, or ``lost:2`` for the GPU with index 2."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

TROUBLES = ("hot", "throttled", "xid", "lost")


def assigned(troubles: Iterable[str], count: int) -> list[frozenset[str]]:
    """The troubles of each of *count* GPUs; one without an index is the last GPU's.

    Raises:
        ValueError: There is no such trouble, or no such GPU.
    """
    found: list[set[str]] = [set() for _ in range(count)]
    for written in troubles:
        name, colon, where = written.partition(":")
        if name not in TROUBLES or not re.fullmatch(r":\d{1,4}" if colon else "", colon + where, re.ASCII):
            raise ValueError(f"{written!r} is none of {', '.join(TROUBLES)}, each with :INDEX of the GPU or without")
        index = int(where or max(count - 1, 0))
        if index >= count:
            mend = (
                f"give an index from 0 to {count - 1}" if count else "set collector.gpu.simulate to how many there are"
            )
            raise ValueError(f"{written!r} ails a GPU that is not simulated; {mend}")
        found[index].add(name)
    return [frozenset(one) for one in found]
