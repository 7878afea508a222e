"""Small files of the kernel's, read whole and without what a text stream costs."""

from __future__ import annotations

import os

_BYTES = 65536


def read(path: str | os.PathLike[str]) -> bytes:
    """All of a file of /proc or /sys.

    Raises:
        OSError: It is not there, or cannot be read; the error has the path.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = [os.read(descriptor, _BYTES)]
        while parts[-1]:
            parts.append(os.read(descriptor, _BYTES))
    except OSError as error:
        error.filename = os.fspath(path)
        raise
    finally:
        os.close(descriptor)
    return b"".join(parts)
