"""The process that asks a file system which may hang: ``python -I -S remote_worker.py PARENT``.

It says ``ready`` when it can be asked. A request is a path in hexadecimal digits, as a line on stdin. Its answer is a
line on stdout: the numbers of `NUMBERS`, or one, the errno. The worker ends with its input and with its parent, a process id. It imports as little as can be, and
nothing of the daemon: it is started where memory is scarce, and may stay for as long as its file system is dead.
"""

from __future__ import annotations

import ctypes
import os
import sys

NUMBERS = ("f_frsize", "f_blocks", "f_bfree", "f_bavail", "f_files", "f_ffree")
PR_SET_PDEATHSIG, SIGKILL = 1, 9  # no other signal ends a process that inherits blocked ones; `signal` imports much


def main(parent: int) -> int:
    """Answers until the input ends; the exit status."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, *map(ctypes.c_ulong, (SIGKILL, 0, 0, 0)))
    if os.getppid() != parent:
        return 1  # it died before it was ours to die with
    os.write(1, b"ready\n")
    for request in sys.stdin.buffer:
        os.write(1, _answer(bytes.fromhex(request.decode())).encode() + b"\n")
    return 0


def _answer(path: bytes) -> str:
    try:
        found = os.statvfs(path)
    except OSError as error:
        return str(error.errno)
    return " ".join(str(getattr(found, name)) for name in NUMBERS)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
