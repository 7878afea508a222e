"""Access to the files of a spool: for one process at a time, their user, and the daemon that owns a shared directory."""

import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path
from struct import Struct

_USER_OBJ, _USER, _GROUP_OBJ, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x10, 0x20  # tags of an access control list
_NO_ID = 2**32 - 1


def acquire_lock(path: Path) -> int:
    """Acquire a session's lock, and return its descriptor.

    Raises:
        BlockingIOError: Another process has it.
        OSError: It cannot be opened.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        # With O_CREAT the kernel refuses another user's file in a sticky directory (fs.protected_regular).
        file = os.open(path, flags)
    except FileNotFoundError:
        file = os.open(path, flags | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        share(file, path.parent)
    except OSError:
        os.close(file)
        raise
    return file


def share(file: int, directory: Path) -> None:
    """Open a file to the owner of its directory, a daemon, if that is shared (setgid and sticky); to nobody else.

    Where the file system has no access control lists, the file stays this user's, who sends it later.
    """
    shared = stat.S_ISGID | stat.S_ISVTX
    status, place = os.fstat(file), directory.stat()
    if place.st_mode & shared != shared or place.st_uid == os.geteuid():
        return
    # With a second name, it may be another file of this user that somebody has linked here.
    if status.st_uid == os.geteuid() and status.st_nlink == 1:
        with suppress(OSError, AttributeError):  # only Linux has the call
            os.setxattr(file, "system.posix_acl_access", _access(place.st_uid))


def _access(user: int) -> bytes:
    """Return an access control list as Linux stores it (acl(5)): the file's owner and *user* read and write, others nothing.

    It sets the bits of the file's group as well, which then limit *user*: the mode is shown as 0660.
    """
    entries = (
        (_USER_OBJ, 6, _NO_ID),
        (_USER, 6, user),
        (_GROUP_OBJ, 0, _NO_ID),
        (_MASK, 6, _NO_ID),
        (_OTHER, 0, _NO_ID),
    )
    return Struct("<I").pack(2) + b"".join(Struct("<HHI").pack(*entry) for entry in entries)
