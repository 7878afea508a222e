"""The process at the other end of a connection, as the kernel has it: right across pid namespaces."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from trackside.identity import stat

if TYPE_CHECKING:
    from trackside.wire import Identity

SO_PEERPIDFD = 77
"""socket(7), Linux 6.5; Python's socket module does not have it."""

PIDFD_INFO_EXIT = 1 << 3
_INFO_BYTES = 64
_INFO_EXIT_CODE = 60
PIDFD_GET_INFO = (3 << 30) | (_INFO_BYTES << 16) | (0xFF << 8) | 11
"""<linux/pidfd.h>: _IOWR(0xFF, 11, struct pidfd_info) in its first form; the exit code came with Linux 6.15."""

_CREDENTIALS = struct.Struct("iII")


class Peer:
    """A process that is followed until its end.

    Attributes:
        pid: As this process counts; the client itself may count otherwise.
        uid: Whose it is.
        start: Clock ticks from boot to its start.
        pidfd: Becomes readable when it is over.
    """

    def __init__(self, pid: int, uid: int, start: int, pidfd: int, proc: Path) -> None:
        self.pid = pid
        self.uid = uid
        self.start = start
        self.pidfd = pidfd
        self._proc = proc

    def exit_code(self) -> int | None:
        """How it ended, as `os.waitstatus_to_exitcode` has it; None while that is not known.

        Once it is reaped, its pidfd tells (Linux 6.15); before, what it left as a zombie does.
        """
        looks = (self._status_of_pidfd, self._status_of_zombie, self._status_of_pidfd)  # it may be reaped in between
        status = next((found for look in looks if (found := look()) is not None), None)
        return None if status is None else os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        """Let go of it."""
        os.close(self.pidfd)

    def _status_of_pidfd(self) -> int | None:
        info = bytearray(_INFO_BYTES)
        struct.pack_into("Q", info, 0, PIDFD_INFO_EXIT)
        try:
            fcntl.ioctl(self.pidfd, PIDFD_GET_INFO, info)
        except OSError:  # an older kernel
            return None
        (told,) = struct.unpack_from("Q", info)
        return struct.unpack_from("i", info, _INFO_EXIT_CODE)[0] if told & PIDFD_INFO_EXIT else None

    def _status_of_zombie(self) -> int | None:
        """/proc/PID/stat, field 52, which is 0 too for who may not know it: just those may not read the link."""
        place = self._proc / str(self.pid)
        try:
            fields = stat(self._proc, self.pid)
            if fields[0] != b"Z" or int(fields[19]) != self.start:
                return None
            (place / "ns" / "pid").readlink()
            return int(fields[49])
        except OSError:  # not for us to know, or reaped just now
            return None


def find_peer(descriptor: int, identity: Identity, proc: Path = Path("/proc")) -> Peer | None:
    """The process at the other end of a unix socket; None when there is none, or it is not the one that *identity* says.

    Args:
        descriptor: The socket's, which belongs to another thread: its number may be another connection's by now.
        identity: What the process said of itself: its start time tells processes apart, and its own view of its pid.
        proc: Where the kernel's process files are.
    """
    try:
        with _borrowed(descriptor) as connection:
            if connection.family != socket.AF_UNIX:
                return None
            size = _CREDENTIALS.size
            pid, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
            pidfd = _pidfd(connection, pid)
    except OSError:
        return None
    if pid > 0 and _is(proc, pid, identity):  # looked at with the pidfd in hand, so that it is of the same one
        return Peer(pid, uid, identity.start, pidfd, proc)
    os.close(pidfd)
    return None


def _borrowed(descriptor: int) -> socket.socket:
    """A socket of our own on the same connection."""
    copy = os.dup(descriptor)
    try:
        return socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise


def _pidfd(connection: socket.socket, pid: int) -> int:
    try:
        return connection.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
    except OSError:  # before Linux 6.5
        return os.pidfd_open(pid)


def _is(proc: Path, pid: int, identity: Identity) -> bool:
    """Whether it is the process that *identity* is of: its start (stat, field 22) and innermost pid (status, NSpid)."""
    try:
        start = int(stat(proc, pid)[19])
        status = (proc / str(pid) / "status").read_bytes().splitlines()
    except OSError:
        return False
    pids = next((line.split() for line in status if line.startswith(b"NSpid:")), [b"", str(pid).encode()])
    return start == identity.start and int(pids[-1]) == identity.pid
