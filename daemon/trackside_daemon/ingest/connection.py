"""A client's connection, and the process at its other end, as the kernel reports it, also across pid namespaces."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from trackside.environment.identity import stat
from trackside.wire import Identity
from trackside_daemon.linux.pid_namespaces import own_pid


class Peer:
    """A client's process.

    Args:
        pid: Its pid in this process's namespace, which may differ from the client's own view (SO_PEERCRED, unix(7)).
        pidfd: A descriptor that is readable when the process has ended; -1 if it cannot be followed.

    Attributes:
        pid: As given.
        pidfd: As given; -1 once it is closed or detached.
    """

    def __init__(self, pid: int, pidfd: int) -> None:
        self.pid = pid
        self.pidfd = pidfd

    def detach(self) -> Peer:
        """Return a peer that owns the descriptor instead of this one."""
        detached = Peer(self.pid, self.pidfd)
        self.pidfd = -1
        return detached

    def close(self) -> None:
        """Close the descriptor."""
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


class Connection(NamedTuple):
    """A connection of the push socket.

    Attributes:
        id: ZeroMQ's routing id, after the number of the worker that has it.
        uid: The user that connected to a Unix socket (SO_PEERCRED); None for TCP.
        key: The name of the key that CURVE has authenticated; empty without one.
        peer: The process that connected; None for TCP.
    """

    id: bytes
    uid: int | None = None
    key: str = ""
    peer: Peer | None = None

    @property
    def owner(self) -> str:
        """Owner of the runs that it opens: ``uid:NUMBER`` or ``key:NAME``; empty if that is unknown (TCP without keys)."""
        if self.uid is not None:
            return f"uid:{self.uid}"
        return f"key:{self.key}" if self.key else ""


def is_process(proc: Path, pid: int, identity: Identity) -> bool:
    """Return whether the start (stat, field 22) of a process and its pid as it sees it are those of an identity.

    Args:
        proc: The mount point of procfs.
        pid: The process. The caller holds a pidfd of it, so that the pid is not reused.
        identity: The client's own report.
    """
    try:
        return int(stat(proc, pid)[19]) == identity.start and own_pid(proc, pid) == identity.pid
    except OSError:
        return False
