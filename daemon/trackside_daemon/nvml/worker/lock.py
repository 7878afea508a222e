"""Lock for one worker per machine.

Two workers that sample the same GPUs steal each other's GPM samples, and can crash the driver.

The lock is an abstract Unix socket: the kernel releases it however the process ends, but not while the process hangs. A
container with a network namespace has a separate lock.
"""

import errno
import os
import socket
import struct
import sys

from trackside_daemon.linux.user_names import user_name

# Environment variable with another lock's name, for a daemon that has other GPUs of the same machine.
LOCK_VARIABLE = "TRACKSIDE_NVML_LOCK"
DEFAULT_NAME = "trackside-nvml"
REMEDY = "stop trackside there, or run this daemon with --no-collector.gpu"


class Locked(Exception):  # noqa: N818 - names the holder
    """Another process has the lock; the message names it and the remedy."""


def lock(name: str = "") -> None:
    """Acquire the lock until this process ends.

    Args:
        name: Name of the lock; if empty, ``$TRACKSIDE_NVML_LOCK`` or `DEFAULT_NAME`.

    Raises:
        Locked: Another process has it.
        OSError: The kernel has no such sockets.
    """
    if not sys.platform.startswith("linux"):  # abstract sockets and NVML exist only there
        return
    address = "\0" + (name or os.environ.get(LOCK_VARIABLE) or DEFAULT_NAME)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        if error.errno != errno.EADDRINUSE:
            raise
        raise Locked(f"{_holder(address)} already samples the GPUs of this machine; {REMEDY}") from error
    # Connections are never accepted: a client only reads the holder's credentials.
    listener.listen(socket.SOMAXCONN)
    # The descriptor must outlive the Python object, which closes it when it is collected.
    listener.detach()


def _holder(address: str) -> str:
    """Describe the process that listens, from SO_PEERCRED, with its parent."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        # connect() would wait once the backlog is full, because nothing accepts connections.
        client.setblocking(False)
        try:
            client.connect(address)
        except OSError:
            return "another process"
        credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", credentials)
    if not pid:  # SO_PEERCRED has no pid for a process outside of this pid namespace
        return "a process of another container"
    # The parent is the daemon: if the user stops only the worker, the daemon starts another.
    return f"process {pid} of user {user_name(uid) or uid}{_parent(pid)}"


def _parent(pid: int) -> str:
    from pathlib import Path  # a worker without this error does not need it

    try:
        status = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return ""
    # The process name stands before it in parentheses, and may itself contain any character.
    return f", started by process {status.rpartition(')')[2].split()[1]},"
