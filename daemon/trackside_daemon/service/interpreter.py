"""Settings of the Python interpreter in a running daemon: garbage collection and thread switching."""

from __future__ import annotations

import gc
import sys

# New objects before a garbage collection. A tick makes and drops thousands that need none; at some 100 bytes each,
# the others add up to 5 MB.
GARBAGE = 50_000

# The switch interval of threads: a scrape needs several turns, while the pipeline computes without a pause.
TURN_SECONDS = 0.001


def settle() -> None:
    """Exempt all objects that exist by now from garbage collection, and set both intervals."""
    # First, because garbage that is frozen would never be freed.
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE)
    sys.setswitchinterval(TURN_SECONDS)
