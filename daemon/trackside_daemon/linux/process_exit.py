"""How a process ended that is another's child, as the kernel tells who follows it by a pidfd."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
from typing import TYPE_CHECKING

from trackside.environment.identity import stat

if TYPE_CHECKING:
    from pathlib import Path

PIDFD_INFO_EXIT = 1 << 3
_INFO_BYTES = 64
_INFO_EXIT_CODE = 60
PIDFD_GET_INFO = (3 << 30) | (_INFO_BYTES << 16) | (0xFF << 8) | 11
"""<linux/pidfd.h>: _IOWR(0xFF, 11, struct pidfd_info) in its first form; the exit code came with Linux 6.15."""


def exit_code(pidfd: int, pid: int, start: int, proc: Path) -> int | None:
    """How it ended, as `os.waitstatus_to_exitcode` has it; None while that is not known.

    Once it is reaped, its pidfd tells (Linux 6.15); before, what it left as a zombie does.

    Args:
        pidfd: Is of the process.
        pid: As this process counts.
        start: Clock ticks from boot to its start, which tells it from another of its pid.
        proc: Where the kernel's process files are.
    """
    status = _of_pidfd(pidfd)
    if status is None:
        status = of_zombie(pid, start, proc)
    if status is None:  # it may be reaped in between
        status = _of_pidfd(pidfd)
    return None if status is None else os.waitstatus_to_exitcode(status)


def of_zombie(pid: int, start: int, proc: Path) -> int | None:
    """Its wait status: /proc/PID/stat, field 52, which is 0 too for who may not know it: just those may not read the link."""
    try:
        fields = stat(proc, pid)
        if fields[0] != b"Z" or int(fields[19]) != start:
            return None
        (proc / str(pid) / "ns" / "pid").readlink()
        return int(fields[49])
    except OSError:  # not for us to know, or reaped just now
        return None


def _of_pidfd(pidfd: int) -> int | None:
    info = bytearray(_INFO_BYTES)
    struct.pack_into("Q", info, 0, PIDFD_INFO_EXIT)
    try:
        fcntl.ioctl(pidfd, PIDFD_GET_INFO, info)
    except OSError:  # an older kernel
        return None
    (told,) = struct.unpack_from("Q", info)
    return struct.unpack_from("i", info, _INFO_EXIT_CODE)[0] if told & PIDFD_INFO_EXIT else None


def signal_name(number: int) -> str:
    """``SIGSEGV``, or ``signal 34`` for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
