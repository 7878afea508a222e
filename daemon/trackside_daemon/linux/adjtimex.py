"""Read the state and offset of the kernel's clock, from adjtimex(2)."""

import ctypes
import os
from ctypes import c_int, c_long
from typing import ClassVar, NamedTuple

TIME_ERROR = 5
STA_NANO = 0x2000
# Virtual machines sometimes report 2**32 ns, which nothing measured:
# https://github.com/prometheus/node_exporter/issues/3764
MAX_OFFSET = 0.5  # largest offset in seconds that the kernel corrects by slewing (MAXPHASE)


class Discipline(NamedTuple):
    """The state of the clock, as a daemon such as chronyd has set it."""

    synchronized: bool  # the clock is synchronized
    offset: float | None  # remaining correction in seconds; None when it exceeds what the kernel can correct


class _Timex(ctypes.Structure):
    """struct timex of <sys/timex.h>; with modes 0 the call changes nothing."""

    _fields_: ClassVar = [
        ("modes", c_int),
        *((name, c_long) for name in ("offset", "freq", "maxerror", "esterror")),
        ("status", c_int),
        *((name, c_long) for name in ("constant", "precision", "tolerance", "seconds", "fraction", "tick")),
        ("more", c_long * 16),  # room for the fields that are not used, which the kernel writes too
    ]


_libc = ctypes.CDLL(None, use_errno=True)


def discipline() -> Discipline:
    """Return the current state of the clock.

    Raises:
        OSError: The call is not permitted, as with some seccomp filters.
    """
    timex = _Timex()
    state = _libc.adjtimex(ctypes.byref(timex))
    if state < 0:
        raise OSError(ctypes.get_errno(), f"adjtimex: {os.strerror(ctypes.get_errno())}")
    offset = timex.offset / (1e9 if timex.status & STA_NANO else 1e6)
    return Discipline(state != TIME_ERROR, offset if abs(offset) <= MAX_OFFSET else None)
