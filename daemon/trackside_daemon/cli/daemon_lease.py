"""A daemon that is there for commands: they hold a lock together, and it ends when it gets the lock alone.

So it serves commands that begin later too, and ends with the last of them, also when they are killed: a lock ends with its
holder.
"""

from __future__ import annotations

import fcntl
import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

LOOK_SECONDS = 0.05
HANDOVER_SECONDS = 0.2
"""The daemon has this long to take the lock that nobody holds any more."""


class Users:
    """The lock of the daemon of one place.

    Args:
        path: A file beside the push socket; it stays.

    Raises:
        OSError: It cannot be had.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def join(self, seconds: float) -> bool:
        """Be one of the users; a daemon that ends is waited for so long. Whether it has worked."""
        until = time.monotonic() + seconds
        while not self._joined():
            if time.monotonic() >= until:
                return False
            time.sleep(LOOK_SECONDS)
        return True

    def first(self) -> bool:
        """Be the one that looks for the daemon and starts it, until `next`; False while another is."""
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a lock of its own beside that of flock(2)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def next(self) -> None:
        """Let another one look."""
        fcntl.lockf(self._file, fcntl.LOCK_UN)

    def leave(self, seconds: float) -> None:
        """Be none any more; a daemon that ends for it is waited for so long."""
        fcntl.flock(self._file, fcntl.LOCK_UN)
        time.sleep(HANDOVER_SECONDS)
        self.join(seconds)
        os.close(self._file)

    def wait(self) -> None:
        """Return when there is no user left, and let none come."""
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def _joined(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
