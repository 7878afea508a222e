"""The directory and the file of the socket that trainings ask.

A file whose socket is gone delays the end of each process by 8 s, because libkineto tries again; a missing one does not. It is
removed at every end: by the daemon, and if that is killed by its ingest worker.
"""

from __future__ import annotations

import os
import re
import socket
import stat
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from trackside.captures.kineto import CONFIG
from trackside.os_errors import os_error_text

if TYPE_CHECKING:
    from pathlib import Path

# libkineto copies the path of its own socket to the 108 bytes of sockaddr_un without a check: DIRECTORY/dynoconfigclientUUID
# and a NUL.
DIRECTORY_BYTES = 108 - len("/dynoconfigclient") - 36 - 1

# libkineto's configuration has comments, trims its values, and inserts the process id before the first ``.json``.
_USABLE = re.compile(r"/(?!.*\.(?:json|\.))[\w./-]+", re.ASCII)


class DirectoryError(Exception):
    """The directory cannot be used; the message states why."""


def require_usable(path: Path) -> None:
    """Check that libkineto can use a directory.

    Raises:
        DirectoryError: It cannot.
    """
    if len(os.fsencode(path)) > DIRECTORY_BYTES:
        raise DirectoryError(f"{path}: libkineto allows {DIRECTORY_BYTES} bytes; give --push.endpoint a shorter path")
    if not _USABLE.fullmatch(str(path)):
        raise DirectoryError(
            f"{path}: libkineto allows letters, digits and ._-/ only, without .. and .json; give --push.endpoint another path"
        )


def prepare(path: Path) -> None:
    """Create a directory for this user alone, and remove from it what killed processes have left.

    Raises:
        DirectoryError: Another user may write to it, or it cannot be used.
    """
    require_usable(path)
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
            raise DirectoryError(f"{path}: it must be a directory of uid {os.getuid()} with mode 0700; remove it")
        for file in path.iterdir():
            if file.is_symlink():
                file.unlink()  # of a recording
            elif file.is_socket():
                remove_stale(file)
        # A poll each second, instead of one in five.
        (path / CONFIG).write_text("ON_DEMAND_CONFIG_UPDATE_INTERVAL_SECS=1\n")
    except OSError as error:
        raise DirectoryError(f"{path}: {os_error_text(error)}") from error


def remove_stale(path: Path) -> None:
    """Remove a socket's file if no process has the socket any more."""
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()


def remove_after(path: Path, seconds: float) -> None:
    """Remove the file of a process that is ending, as soon as its socket is closed; wait at most *seconds*."""
    until = time.monotonic() + seconds
    while path.exists() and time.monotonic() < until:
        remove_stale(path)
        time.sleep(0.01)
