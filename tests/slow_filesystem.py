"""A file system whose reads take as long as a file states: FUSE with one large file, in a separate process.

That process runs this file as a program: ``python slow_filesystem.py MOUNTPOINT DELAY``. A process that reads waits as for a
disk: in state D, counted by the kernel as pressure of I/O.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from pathlib import Path

from dead_filesystem import GETATTR, INIT, SILENT, CannotMount, mounted, opcode, print_line, unmount

LOOKUP, OPEN, READ, RELEASE, FLUSH = 1, 14, 15, 18, 25
ASYNC_READ = 1
ROOT, FILE = 1, 2
FILE_BYTES = 1 << 33
PAGE = 4096


class SlowFilesystem:
    """A mounted file system; its file is ``data``.

    Args:
        directory: An empty directory, in which it makes the mount point.

    Raises:
        CannotMount: The message gives the reason.
    """

    def __init__(self, directory: Path) -> None:
        self._point, self._delay = directory / "slow", directory / "delay"
        self._point.mkdir()
        self.set_delay(0.0)
        self.file = self._point / "data"
        command = [sys.executable, __file__, str(self._point), str(self._delay)]
        self._server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._server.stdout is not None
        if (reported := self._server.stdout.readline().strip()) != "mounted":
            self.close()
            raise CannotMount(reported)

    def set_delay(self, seconds: float) -> None:
        """Set the duration of each read."""
        new = self._delay.with_suffix(".new")
        new.write_text(str(seconds))
        new.replace(self._delay)

    def close(self) -> None:
        """End the server and unmount."""
        assert self._server.stdout is not None
        self._server.kill()
        self._server.wait()
        self._server.stdout.close()
        unmount(str(self._point))


def serve(point: str, delay: Path) -> None:
    """Answer requests until the process is killed."""
    try:
        device = mounted(point)
    except OSError as error:
        print_line(f"this machine cannot mount FUSE: {error}")
        return
    print_line("mounted")
    while True:
        request = os.read(device, 1024 * 1024 + 4096)
        if (code := opcode(request)) in SILENT:
            continue
        if code == READ:
            time.sleep(float(delay.read_text()))
        body = _body(code, request)
        head = struct.pack(
            "=IiQ",
            16 + len(body or b""),
            0 if body is not None else -38,
            struct.unpack_from("=Q", request, 8)[0],
        )
        os.write(device, head + (body or b""))


def _body(code: int, request: bytes) -> bytes | None:
    """Return the answer to a request; None for one that is not known."""
    if code == INIT:
        major, minor = struct.unpack_from("=II", request, 40)
        # Only a reader of asynchronous reads waits as for a disk.
        return struct.pack("=IIIIHHIIHHI7I", major, min(minor, 31), PAGE, ASYNC_READ, 8, 8, PAGE, 1, 1, 0, 0, *(0,) * 7)
    if code == GETATTR:
        return struct.pack("=QII", 1, 0, 0) + _attributes(struct.unpack_from("=Q", request, 16)[0])
    if code == LOOKUP:
        return struct.pack("=QQQQII", FILE, 0, 1, 1, 0, 0) + _attributes(FILE)
    if code == OPEN:
        return struct.pack("=QII", 1, 0, 0)
    if code == READ:
        return bytes(struct.unpack_from("=I", request, 56)[0])
    return b"" if code in {RELEASE, FLUSH} else None


def _attributes(node: int) -> bytes:
    size, mode = (0, 0o40755) if node == ROOT else (FILE_BYTES, 0o100444)
    return struct.pack("=6Q10I", node, size, *(0,) * 7, mode, 1, os.getuid(), os.getgid(), 0, PAGE, 0)


if __name__ == "__main__":
    serve(sys.argv[1], Path(sys.argv[2]))
