"""Check of the process ids that the driver reports.

A driver once reported wrong ones because the layout of its answer had changed: XuehaiPan/nvitop#75.
"""

import os
from pathlib import Path

PROC = "/proc"

# The NSpid line would not do: it begins with the namespace that /proc was mounted in, which may be a container's.
# Inode of the PID namespace that the kernel makes at boot: PROC_PID_INIT_INO in its proc_ns.h.
HOST_NAMESPACE = 0xEFFFFFFC

PID_LIMIT = 2**22  # highest process id of the kernel; a namespace may have a lower pid_max than the host


# Without pathlib, which would cost the worker 0.6 MiB.


def max_pid(proc: Path | str) -> int:
    """Return the highest process id that the driver, which reports those of the host, can report."""
    if not in_host_pid_namespace(proc):
        return PID_LIMIT
    with open(f"{proc}/sys/kernel/pid_max", encoding="ascii") as file:  # noqa: PTH123
        return int(file.read())


def in_host_pid_namespace(proc: Path | str) -> bool:
    """Return whether process ids mean the same here as to the driver; in a container they usually do not."""
    try:
        return os.stat(f"{proc}/self/ns/pid").st_ino == HOST_NAMESPACE  # noqa: PTH116
    except OSError:
        return False


def exists(pid: int) -> bool:
    """Return whether the process exists."""
    # /proc may hide the processes of other users (hidepid); signal 0 does not.
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


class HostPids:
    """Set of the plausible process ids.

    Args:
        limit: Highest process id.
        checked: Whether a process id that does not exist here is implausible.
    """

    def __init__(self, limit: int, checked: bool) -> None:
        self._limit = limit
        self._checked = checked

    def __contains__(self, pid: int) -> bool:
        return 0 < pid <= self._limit and (not self._checked or exists(pid))


def host_pids(proc: Path | str = PROC) -> HostPids:
    """Return the process ids that are plausible on this host; in a container existence is not checked."""
    try:
        return HostPids(max_pid(proc), checked=in_host_pid_namespace(proc))
    except (OSError, ValueError):
        return HostPids(PID_LIMIT, checked=False)
