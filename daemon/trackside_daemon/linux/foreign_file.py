"""Open files that somebody else may write or replace at any moment: only what has been checked is opened."""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

# To open a FIFO or a device is an act, and can block; a descriptor of O_PATH only stands for it (open(2)).
_PLACE = getattr(os, "O_PATH", os.O_NONBLOCK) | os.O_CLOEXEC


def open_checked(path: Path, refuse: Callable[[os.stat_result], object]) -> int:
    """Open a regular file for reading, and return its descriptor. The call never blocks, and opens no FIFO and no device.

    Args:
        path: Its path, also a symbolic link.
        refuse: Raises for the status of a file that is not to be opened.

    Raises:
        OSError: It cannot be opened, or is not a regular file.
    """
    place = os.open(path, _PLACE)
    try:
        refuse(_regular(place))
        return _reopened(place, path)
    finally:
        os.close(place)


def open_foreign(path: Path) -> BufferedReader:
    """Open a regular file, which cannot be made to stand for a private one of the reader's; see `open_checked`.

    Args:
        path: Its path, in which no part may be a symbolic link: resolve what a user has given, and append to that.

    Raises:
        OSError: It cannot be opened, or is not a regular file; a part of the path is a link; or it is private, and belongs
            to another user than its directory does, as a hard link to it would.
    """
    with _found(path) as place:
        return os.fdopen(_reopened(place, path), "rb")


def foreign_status(path: Path) -> os.stat_result:
    """Return the status of a file that `open_foreign` would open, without opening it; see there."""
    with _found(path) as file:
        return os.fstat(file)


@contextmanager
def _found(path: Path) -> Iterator[int]:
    """Yield a descriptor that stands for a file, and cannot read it."""
    opened: list[int] = []
    try:
        opened.append(os.open(path.anchor or ".", _PLACE | os.O_NOFOLLOW))
        for part in path.relative_to(path.anchor).parts:
            opened.append(os.open(part, _PLACE | os.O_NOFOLLOW, dir_fd=opened[-1]))
        if _is_planted(_regular(opened[-1]), os.fstat(opened[-2])):
            raise OSError(errno.EPERM, "private, and not of the user who owns its directory")  # noqa: TRY301  as all others
        yield opened[-1]
    except OSError as error:
        reason = "behind a symbolic link" if error.errno == errno.ENOTDIR else error.strerror
        raise OSError(error.errno, reason, str(path)) from None
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _regular(place: int) -> os.stat_result:
    status = os.fstat(place)
    if stat.S_ISLNK(status.st_mode):
        raise OSError(errno.ELOOP, "a symbolic link, which is not followed here")
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    return status


def _reopened(place: int, path: Path) -> int:
    # Not by its path, which may name another file by now.
    name = f"/proc/self/fd/{place}" if hasattr(os, "O_PATH") else path
    return os.open(name, os.O_RDONLY | os.O_CLOEXEC)


def _is_planted(file: os.stat_result, directory: os.stat_result) -> bool:
    """Return whether the owner of a directory could have no right to read a file in it. Root may read all."""
    readable = stat.S_IROTH | (stat.S_IRGRP if file.st_gid == directory.st_gid else 0)
    return directory.st_uid not in (0, file.st_uid) and not file.st_mode & readable
