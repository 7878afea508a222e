"""How Python itself is set in a daemon that has started: its search for garbage, and the turns of its threads."""

from __future__ import annotations

import gc
import sys

GARBAGE = 50_000
"""So many new objects before garbage is looked for: a tick makes and drops thousands, none of which waits for that; at
some 100 bytes each, what does wait is 5 MB."""

TURN_SECONDS = 0.001
"""A thread that computes lets another have its turn after so long: a scrape needs several turns, while pushes are packed
and looked at without a pause."""


def settle() -> None:
    """What is there by now stays, and the search for garbage need not pass through it each time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE)
    sys.setswitchinterval(TURN_SECONDS)
