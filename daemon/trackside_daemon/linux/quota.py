"""Read a user's disk quota by quotactl_fd(2), of Linux 5.14."""

import ctypes
import os

_QUOTACTL_FD = 443  # the number of the call on all architectures
_USER_BLOCKS = 0x80000700  # QCMD(Q_GETQUOTA, USRQUOTA)
_LIMIT_BYTES = 1024  # the unit of limits

_libc = ctypes.CDLL(None, use_errno=True)


class _Quota(ctypes.Structure):
    """The ``struct if_dqblk`` of linux/quota.h."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("hard", "soft", "used", "inode_hard", "inode_soft", "inodes", "time")),
        ("inode_time", ctypes.c_uint64),
        ("valid", ctypes.c_uint32),
    )


def quota_left(directory: str, uid: int) -> int | None:
    """Return the bytes that a user may still write to a directory's file system; None if no quota limits them.

    Raises:
        OSError: The directory cannot be opened.
    """
    if not hasattr(_libc, "syscall"):
        return None
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        quota = _Quota()
        failed = _libc.syscall(_QUOTACTL_FD, handle, ctypes.c_uint(_USER_BLOCKS), uid, ctypes.byref(quota))
    finally:
        os.close(handle)
    if failed or not quota.hard:
        return None
    return max(0, int(quota.hard) * _LIMIT_BYTES - int(quota.used))
