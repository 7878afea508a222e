"""Settings of the Python interpreter in a running daemon: garbage collection, thread switching and heaps."""

from __future__ import annotations

import ctypes
import gc
import sys

# New objects before a garbage collection. A tick makes and drops thousands that need none; at some 100 bytes each,
# the others add up to 5 MB.
GARBAGE = 50_000

# The switch interval of threads: a scrape needs several turns, while the pipeline computes without a pause. With 0.3 ms a scrape
# is faster still, but a thousand clients that connect anew wait much longer.
TURN_SECONDS = 0.001

# Heaps that threads share, and the number of this parameter in glibc's malloc.h. By default, each of the daemon's threads
# has its own, which together cost 0.5 MiB.
HEAPS = 2
M_ARENA_MAX = -8


def share_heaps() -> None:
    """Let the threads that start from now on share the heaps of C libraries."""
    if hasattr(libc := ctypes.CDLL(None), "mallopt"):  # only in glibc and in libraries that imitate it
        libc.mallopt(M_ARENA_MAX, HEAPS)


def settle() -> None:
    """Exempt all objects that exist by now from garbage collection, and set both intervals."""
    # First, because garbage that is frozen would never be freed.
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE)
    sys.setswitchinterval(TURN_SECONDS)
