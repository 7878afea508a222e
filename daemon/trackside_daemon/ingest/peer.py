"""The process at the other end of a connection, as the kernel has it: right across pid namespaces."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from trackside.environment.identity import stat
from trackside_daemon.linux.process_exit import exit_code

if TYPE_CHECKING:
    from trackside.wire import Identity

SO_PEERPIDFD = 77
"""socket(7), Linux 6.5; Python's socket module does not have it."""

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
        """How it ended, as `os.waitstatus_to_exitcode` has it; None while that is not known."""
        return exit_code(self.pidfd, self.pid, self.start, self._proc)

    def close(self) -> None:
        """Let go of it."""
        os.close(self.pidfd)


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
        status = (proc / str(pid) / "status").read_bytes().split(b"\n")
    except OSError:
        return False
    pids = next((line.split() for line in status if line.startswith(b"NSpid:")), [b"", str(pid).encode()])
    return start == identity.start and int(pids[-1]) == identity.pid
