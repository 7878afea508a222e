"""A lock on a file that one process holds at a time."""

import errno
import fcntl
import os
from pathlib import Path

# For example NFS without a lock server, or Lustre mounted without flock.
_UNSUPPORTED = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})


class HeldError(Exception):
    """Another process holds the lock; the message is its pid, or ``unknown``."""


class FileLock:
    """An exclusive flock(2), held until it is closed or the process ends in any way.

    Args:
        path: The lock file. It is created with mode 0600, keeps the holder's pid and is never deleted.
        required: Raise on a file system without locks.

    Attributes:
        supported: False on a file system without locks: nothing is locked then.

    Raises:
        HeldError: Another process holds the lock.
        OSError: The file cannot be opened or locked.
    """

    def __init__(self, path: Path, *, required: bool = True) -> None:
        self.supported = True
        self._path = path
        # O_NOFOLLOW: a link that another user placed there must not have its target overwritten.
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._write_pid()
        except BlockingIOError:
            holder = os.pread(self._file, 32, 0).decode(errors="replace").partition("\n")[0].strip()
            self.close()
            raise HeldError(holder or "unknown") from None
        except OSError as error:
            self.supported = required or error.errno not in _UNSUPPORTED
            if self.supported:
                self.close()
                raise

    def is_current(self) -> bool:
        """Return whether the file is still the one at its path, where another process would lock it."""
        try:
            return os.path.samestat(self._path.lstat(), os.fstat(self._file))
        except OSError:
            return False

    def close(self) -> None:
        """Release the lock. You may call it again."""
        # The file stays: after a deletion, a second process could lock a new file while the first one is still ending.
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _write_pid(self) -> None:
        # The new pid overwrites the last one before the file is cut, so the file is never empty and needs no free space.
        line = f"{os.getpid()}\n".encode()
        try:
            os.pwrite(self._file, line, 0)
            os.ftruncate(self._file, len(line))
        except OSError as error:
            if error.errno not in {errno.ENOSPC, errno.EDQUOT}:  # a full disk must not keep a daemon from starting
                raise
