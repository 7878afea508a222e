"""A file system that hangs when a test wants it to: FUSE as far as statvfs(3) needs it, in a separate process.

That process runs this file as a program: ``python dead_filesystem.py MOUNTPOINT``. It writes a line when it has
mounted: ``mounted``, or the reason why it cannot. It reads ``hang``, ``answer`` and ``asked`` as lines. At the end of
its input it unmounts the file system and ends.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import socket
import struct
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BLOCK, BLOCKS, FREE, AVAIL, FILES, FILES_FREE = 4096, 1000, 400, 300, 200, 150
"""What it tells of itself."""

GETATTR, STATFS, INIT = 3, 17, 26
SILENT = {2, 36, 42}  # FORGET, INTERRUPT and BATCH_FORGET have no answer
ENOSYS = 38
MS_RDONLY, MS_NOSUID, MS_NODEV, MNT_DETACH = 1, 2, 4, 2
READ_BYTES = 1024 * 1024 + 4096

libc = ctypes.CDLL(None, use_errno=True)


class CannotMount(Exception):  # noqa: N818 - says what is so
    """An error: there is no /dev/fuse, or this user may not mount."""


class FuseMount:
    """A mounted file system that answers; it ends with its server process, even if that is killed.

    Args:
        point: An empty directory.

    Raises:
        CannotMount: The message gives the reason.
    """

    def __init__(self, point: Path) -> None:
        self._point = point
        self._server = subprocess.Popen(
            [sys.executable, __file__, str(point)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        if (reported := self._line()) != "mounted":
            self.close()
            raise CannotMount(reported)

    def hang(self) -> None:
        """Leave statfs requests without an answer from now on; a process that makes one is in D state."""
        self._command("hang")

    def answer(self) -> None:
        """Answer requests, including the earlier ones."""
        self._command("answer")

    def asked(self) -> int:
        """Return the number of requests that wait for an answer."""
        return int(self._command("asked").removeprefix("asked "))

    def close(self) -> None:
        """Kill the server and unmount, which ends every wait."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.kill()
        self._server.wait()
        self._server.stdin.close()
        self._server.stdout.close()
        if os.path.ismount(self._point) or _is_dead(self._point):
            unmount(str(self._point))

    def _command(self, line: str) -> str:
        assert self._server.stdin is not None
        self._server.stdin.write(line + "\n")
        return self._line()

    def _line(self) -> str:
        assert self._server.stdout is not None
        return self._server.stdout.readline().rstrip("\n")


def mount_overlay(point: Path, *layers: Path) -> Callable[[], None]:
    """Mount layers, the upper one first, as a read-only file system; return a function that unmounts it.

    Raises:
        CannotMount: The message gives the reason.
    """
    options = f"lowerdir={':'.join(map(str, layers))}".encode()
    if libc.mount(b"overlay", os.fsencode(point), b"overlay", MS_RDONLY, options) != 0:
        raise CannotMount(f"this machine cannot mount an overlay: {os.strerror(ctypes.get_errno())}")
    return partial(unmount, str(point))


def serve(point: str) -> None:
    """Answer requests until the input ends."""
    try:
        device = mounted(point)
    except OSError as error:
        print_line(f"this machine cannot mount FUSE: {error}")
        return
    print_line("mounted")
    hangs, waiting = False, []
    while True:
        for ready in select.select([device, 0], [], [])[0]:
            if ready == device:
                request = os.read(device, READ_BYTES)
                if hangs and opcode(request) == STATFS:
                    waiting.append(request)
                else:
                    _reply(device, request)
                continue
            line = os.read(0, 100).decode().strip()
            if not line:
                unmount(point)
                return
            if line != "asked":
                hangs = line == "hang"
            while waiting and not hangs:
                _reply(device, waiting.pop())
            print_line(f"{line} {len(waiting)}")


def print_line(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def mounted(point: str) -> int:
    """Mount the file system; return the device that receives its requests."""
    if os.geteuid() != 0:
        return _mounted_by_fusermount(point)
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    if libc.mount(b"trackside", os.fsencode(point), b"fuse.trackside", MS_NOSUID | MS_NODEV, options) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), point)
    return device


def _mounted_by_fusermount(point: str) -> int:
    """Mount by fusermount, for users other than root; it sends the device."""
    program = shutil.which("fusermount3")
    if program is None:
        raise FileNotFoundError(2, "not root, and no fusermount3; apt-get install fuse3")
    ours, its = socket.socketpair()
    with ours, its:
        environ = {**os.environ, "_FUSE_COMMFD": str(its.fileno())}
        command = [program, "-o", "rw,nosuid,nodev,fsname=trackside,subtype=trackside", "--", point]
        done = subprocess.run(
            command, env=environ, pass_fds=[its.fileno()], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise PermissionError(1, done.stderr.strip())
        return socket.recv_fds(ours, 1, 1)[1][0]


def opcode(request: bytes) -> int:
    opcode: int = struct.unpack_from("=II", request)[1]
    return opcode


def _reply(device: int, request: bytes) -> None:
    _, opcode, unique = struct.unpack_from("=IIQ", request)
    if opcode in SILENT:
        return
    body = b""
    if opcode == INIT:
        major, minor, ahead = struct.unpack_from("=III", request, 40)
        body = struct.pack("=IIIIHHIIHHI7I", major, min(minor, 31), ahead, 0, 8, 8, 4096, 1, 1, 0, 0, *(0,) * 7)
    elif opcode == GETATTR:
        directory = struct.pack("=6Q10I", 1, 0, 0, 0, 0, 0, 0, 0, 0, 0o40755, 2, os.getuid(), os.getgid(), 0, BLOCK, 0)
        body = struct.pack("=QII", 1, 0, 0) + directory
    elif opcode == STATFS:
        body = struct.pack("=5Q4I24x", BLOCKS, FREE, AVAIL, FILES, FILES_FREE, BLOCK, 255, BLOCK, 0)
    os.write(device, struct.pack("=IiQ", 16 + len(body), 0 if body else -ENOSYS, unique) + body)


def _is_dead(point: Path) -> bool:
    """Return whether the mount at a point has lost its server."""
    try:
        point.stat()
    except OSError:
        return True
    return False


def unmount(point: str) -> None:
    if libc.umount2(os.fsencode(point), MNT_DETACH) != 0 and (program := shutil.which("fusermount3")):
        subprocess.run([program, "-u", "-z", "--", point], check=False)


if __name__ == "__main__":
    serve(sys.argv[1])
