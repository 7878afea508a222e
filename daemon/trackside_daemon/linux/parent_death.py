"""Tie the life of a child process to its parent's."""

from __future__ import annotations

import ctypes
import os

# Also imported by collectors/host/filesystem/remote_worker.py, which starts where memory is scarce: standard library only.

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)  # loaded here, since a forked child calls it between fork and exec


def end_with_parent(parent: int | None, number: int) -> None:
    """Have the kernel send this process a signal when its parent dies, by prctl(2) PR_SET_PDEATHSIG.

    The kernel sends the signal when the *thread* that started this process ends. Outside Linux this has no effect.

    Args:
        parent: The process id of the parent; None to skip the check whether it is still alive.
        number: The signal.
    """
    if hasattr(_libc, "prctl"):
        # prctl is variadic and reads unsigned longs, while ctypes passes a plain number as an int.
        _libc.prctl(_PR_SET_PDEATHSIG, *map(ctypes.c_ulong, (int(number), 0, 0, 0)))
    # A parent that died before the call sends no signal.
    if parent is not None and os.getppid() != parent:
        os._exit(1)
