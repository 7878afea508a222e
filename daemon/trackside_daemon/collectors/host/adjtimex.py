"""How far the kernel knows its clock to be off, from adjtimex(2)."""

from __future__ import annotations

import ctypes
import os
from ctypes import c_int, c_long
from typing import ClassVar, NamedTuple

TIME_ERROR = 5
STA_NANO = 0x2000
MOST = 0.5
"""The kernel slews by no more, in seconds (MAXPHASE). On virtual machines 2**32 ns come up at times, which nobody has
measured: https://github.com/prometheus/node_exporter/issues/3764."""


class Discipline(NamedTuple):
    """What the kernel was told of its clock by who keeps it, such as chronyd.

    Attributes:
        synchronized: It is kept.
        offset: By how much it is still to be slewed, in seconds; None when that is none that the kernel can hold.
    """

    synchronized: bool
    offset: float | None


class _Timex(ctypes.Structure):
    """struct timex of <sys/timex.h>; with modes 0 nothing is set."""

    _fields_: ClassVar = [
        ("modes", c_int),
        *((name, c_long) for name in ("offset", "freq", "maxerror", "esterror")),
        ("status", c_int),
        *((name, c_long) for name in ("constant", "precision", "tolerance", "seconds", "fraction", "tick")),
        ("more", c_long * 16),
    ]


_libc = ctypes.CDLL(None, use_errno=True)


def discipline() -> Discipline:
    """What the kernel says now.

    Raises:
        OSError: It may not be asked, as below some seccomp filters.
    """
    timex = _Timex()
    state = _libc.adjtimex(ctypes.byref(timex))
    if state < 0:
        raise OSError(ctypes.get_errno(), f"adjtimex: {os.strerror(ctypes.get_errno())}")
    offset = timex.offset / (1e9 if timex.status & STA_NANO else 1e6)
    return Discipline(state != TIME_ERROR, offset if abs(offset) <= MOST else None)
