"""Read how a process ended that is not a child of this one, from its pidfd or its zombie."""

import fcntl
import os
import select
import signal
import struct
from pathlib import Path

from trackside.environment.identity import stat

PIDFD_INFO_EXIT = 1 << 3
_INFO_BYTES = 64
_INFO_EXIT_CODE = 60  # offset of exit_code, the last field of struct pidfd_info in its first form
# <linux/pidfd.h>: _IOWR(0xFF, 11, struct pidfd_info) in its first form; the exit code came with Linux 6.15.
PIDFD_GET_INFO = (3 << 30) | (_INFO_BYTES << 16) | (0xFF << 8) | 11


def exit_code(pidfd: int, pid: int, start: int, proc: Path) -> int | None:
    """Return how a process ended, as `os.waitstatus_to_exitcode` gives it; None while that is not known.

    Args:
        pidfd: A pidfd of the process.
        pid: Its id in this process's pid namespace.
        start: Clock ticks from boot to its start, which distinguish it from other processes with the same pid.
        proc: Path of procfs.
    """
    # The pidfd has the status once the process is reaped (Linux 6.15); before that, its zombie has it. The process may
    # be reaped between the two reads, so the pidfd is read again.
    status = _pidfd_wait_status(pidfd)
    if status is None:
        status = zombie_wait_status(pid, start, proc)
    if status is None:
        status = _pidfd_wait_status(pidfd)
    return None if status is None else os.waitstatus_to_exitcode(status)


def zombie_wait_status(pid: int, start: int, proc: Path) -> int | None:
    """Return the wait status of a zombie (/proc/PID/stat, field 52); None when it cannot be read."""
    try:
        fields = stat(proc, pid)
        if fields[0] != b"Z" or int(fields[19]) != start:
            return None
        # Field 52 is 0 for users without ptrace access to the process. Reading this link needs the same access, and
        # fails for them.
        (proc / str(pid) / "ns" / "pid").readlink()
        return int(fields[49])
    except OSError:  # no permission, or reaped just now
        return None


def _pidfd_wait_status(pidfd: int) -> int | None:
    info = bytearray(_INFO_BYTES)
    struct.pack_into("Q", info, 0, PIDFD_INFO_EXIT)
    try:
        fcntl.ioctl(pidfd, PIDFD_GET_INFO, info)
    except OSError:  # an older kernel
        return None
    (mask,) = struct.unpack_from("Q", info)
    return struct.unpack_from("i", info, _INFO_EXIT_CODE)[0] if mask & PIDFD_INFO_EXIT else None


def signal_name(number: int) -> str:
    """Return a signal's name, such as ``SIGSEGV``, or ``signal 34`` for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class PidfdPoller:
    """A set of pidfds, each of which is reported once, when its process ends.

    On systems without pidfds it stays empty: `supported` is False, and `fileno` never becomes readable.
    """

    def __init__(self) -> None:
        self.supported = hasattr(select, "epoll") and hasattr(os, "pidfd_open")
        self._pipe: tuple[int, int] | None = None
        if self.supported:
            self._epoll = select.epoll()
        else:
            # Nothing ever writes to it.
            self._pipe = os.pipe()

    def fileno(self) -> int:
        """Return a descriptor that is readable while an end is unreported."""
        return self._epoll.fileno() if self._pipe is None else self._pipe[0]

    def register(self, pidfd: int) -> None:
        """Add a pidfd.

        Raises:
            OSError: It would exceed this user's limit of epoll watches, or pidfds are not supported.
        """
        if self._pipe is not None:
            raise OSError("this system has no pidfds")
        # The pidfd of an ended process stays readable: without EPOLLONESHOT each poll would report it again.
        self._epoll.register(pidfd, select.EPOLLIN | select.EPOLLONESHOT)

    def unregister(self, pidfd: int) -> None:
        """Remove a pidfd."""
        self._epoll.unregister(pidfd)

    def ended(self) -> list[int]:
        """Return the pidfds of processes that ended since the last call, in the order of their ends."""
        # epoll lists descriptors in the order in which they became ready.
        return [] if self._pipe is not None else [pidfd for pidfd, _ in self._epoll.poll(0)]

    def close(self) -> None:
        """Close the poller, but not its pidfds."""
        if self._pipe is None:
            self._epoll.close()
        else:
            for end in self._pipe:
                os.close(end)
