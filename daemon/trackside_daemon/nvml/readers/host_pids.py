"""Which process ids that the driver tells can be true: once it told others, since its answer's layout had changed.

See XuehaiPan/nvitop#75.
"""

from __future__ import annotations

import os
from pathlib import Path

PROC = Path("/proc")

HOST_NAMESPACE = 0xEFFFFFFC
"""The inode of the namespace that the kernel makes at boot, PROC_PID_INIT_INO of its proc_ns.h. The NSpid line would not
tell: it begins with the namespace that /proc was mounted in, which in a container is the container's own."""

PID_LIMIT = 2**22
"""The kernel gives no higher one; a namespace may have a pid_max of its own, below that of the host."""


def highest(proc: Path) -> int:
    """The highest process id that the driver, which tells those of the host, can tell."""
    return int((proc / "sys/kernel/pid_max").read_text()) if sees_host(proc) else PID_LIMIT


def sees_host(proc: Path) -> bool:
    """Whether process ids mean here what they mean to the driver; in a container mostly not."""
    try:
        return (proc / "self/ns/pid").stat().st_ino == HOST_NAMESPACE
    except OSError:
        return False


def exists(pid: int) -> bool:
    """Whether there is such a process. /proc may hide those of others (hidepid), a signal's check does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


class Pids:
    """The process ids that can be true.

    Args:
        limit: The highest that there can be.
        checked: Whether one that does not exist here exists nowhere.
    """

    def __init__(self, limit: int, checked: bool) -> None:
        self._limit = limit
        self._checked = checked

    def __contains__(self, pid: int) -> bool:
        return 0 < pid <= self._limit and (not self._checked or exists(pid))


def of_this_host(proc: Path = PROC) -> Pids:
    """By what this process sees of the host; in a container nothing is known to be absent."""
    try:
        return Pids(highest(proc), checked=sees_host(proc))
    except (OSError, ValueError):
        return Pids(PID_LIMIT, checked=False)
