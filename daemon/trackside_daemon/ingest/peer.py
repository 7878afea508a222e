"""The process at the other end of a connection, as the kernel reports it, also across pid namespaces."""

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

SO_PEERPIDFD = 77  # the option of socket(7), since Linux 6.5; Python's socket module lacks it

_CREDENTIALS = struct.Struct("iII")  # pid, uid and gid of struct ucred (unix(7))


class Peer:
    """A client's process.

    Attributes:
        pid: Its pid in this process's namespace, which may differ from the client's own view.
        uid: Its user.
        start: Its start, in clock ticks since boot.
        pidfd: A descriptor that is readable when the process has ended.
    """

    def __init__(self, pid: int, uid: int, start: int, pidfd: int, proc: Path) -> None:
        self.pid = pid
        self.uid = uid
        self.start = start
        self.pidfd = pidfd
        self._proc = proc

    def exit_code(self) -> int | None:
        """Return how it ended, as from `os.waitstatus_to_exitcode`; None while that is unknown."""
        return exit_code(self.pidfd, self.pid, self.start, self._proc)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.pidfd)


def find_peer(descriptor: int, identity: Identity, proc: Path = Path("/proc")) -> Peer | None:
    """Return the process at the other end of a Unix socket; None if there is none, or if *identity* names another.

    Args:
        descriptor: The socket, which another thread owns: its number may belong to another connection by now.
        identity: The client's own report: its start time and its pid in its own namespace.
        proc: The mount point of procfs.
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
    # SO_PEERCRED reports pid 0 for a process that this pid namespace does not show.
    if pid > 0 and _is(proc, pid, identity):  # checked while the pidfd is open, so that the pid is not reused
        return Peer(pid, uid, identity.start, pidfd, proc)
    os.close(pidfd)
    return None


def _borrowed(descriptor: int) -> socket.socket:
    """Return a duplicate of the socket."""
    copy = os.dup(descriptor)  # ZeroMQ may close its descriptor meanwhile
    try:
        return socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise


def _pidfd(connection: socket.socket, pid: int) -> int:
    try:
        # Unlike a pid, it cannot belong to a process that has reused the number.
        return connection.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
    except OSError:  # before Linux 6.5
        return os.pidfd_open(pid)


def _is(proc: Path, pid: int, identity: Identity) -> bool:
    """Return whether a process has this identity: its start (stat, field 22) and innermost pid (status, NSpid)."""
    try:
        start = int(stat(proc, pid)[19])
        status = (proc / str(pid) / "status").read_bytes().split(b"\n")
    except OSError:
        return False
    pids = next((line.split() for line in status if line.startswith(b"NSpid:")), [b"", str(pid).encode()])
    return start == identity.start and int(pids[-1]) == identity.pid
