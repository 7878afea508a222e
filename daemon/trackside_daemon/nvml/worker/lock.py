"""One worker a machine: two that sample the same GPUs take each other's GPM samples, and can crash the driver.

The lock is an abstract unix socket, so the kernel takes it back however its process ends, and not while that hangs. A
container with a network namespace of its own has locks of its own.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from pathlib import Path

from trackside_daemon.linux.users import name_of

VARIABLE = "TRACKSIDE_NVML_LOCK"
"""Names another lock, for a daemon that is given other GPUs of the same machine."""
NAME = "trackside-nvml"
WAY_OUT = "stop trackside there, or run this daemon with --no-collector.gpu"


class Locked(Exception):  # noqa: N818 - says who has it
    """Another process has the lock; the message names it and the way out."""


def lock(name: str = "") -> None:
    """Takes the lock until this process ends.

    Args:
        name: Of the lock; ``$TRACKSIDE_NVML_LOCK`` or `NAME` when empty.

    Raises:
        Locked: Another process has it.
        OSError: The kernel has no such sockets.
    """
    address = "\0" + (name or os.environ.get(VARIABLE) or NAME)
    mine = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        mine.bind(address)
    except OSError as error:
        mine.close()
        if error.errno != errno.EADDRINUSE:
            raise
        raise Locked(f"{_holder(address)} samples the GPUs of this machine already; {WAY_OUT}") from error
    # Nobody is ever accepted: whoever connects reads the holder's credentials and leaves.
    mine.listen(socket.SOMAXCONN)
    mine.detach()


def _holder(address: str) -> str:
    """Who listens, from SO_PEERCRED; its parent, the daemon, is named since stopping a worker alone starts another."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as theirs:
        theirs.setblocking(False)
        try:
            theirs.connect(address)
        except OSError:
            return "another process"
        credentials = theirs.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", credentials)
    if not pid:
        return "a process of another container"
    return f"process {pid} of user {name_of(uid) or uid}{_parent(pid)}"


def _parent(pid: int) -> str:
    try:
        status = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return ""
    # The name before it, in parentheses, may contain anything.
    return f", started by process {status.rpartition(')')[2].split()[1]},"
