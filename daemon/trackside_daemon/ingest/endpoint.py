"""Where the push socket is bound, and that no other daemon has it."""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from trackside.discovery import SOCKET, SYSTEM_DIRECTORY, deaf, directories

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


PATH_BYTES = 107
"""What sockaddr_un has room for."""

ANOTHER = "--push.endpoint=ipc:///PATH"
ELSEWHERE = f"name another place with {ANOTHER}"


class EndpointError(Exception):
    """The socket cannot be had; the message says why and what to do."""


def default_directory(environ: Mapping[str, str], uid: int) -> Path:
    """The first directory that clients look in and that this daemon may make: 0700 and its own.

    A service manager that made ``/run/trackside`` for us says so in $RUNTIME_DIRECTORY.

    Raises:
        EndpointError: None of them can be used.
    """
    if str(SYSTEM_DIRECTORY) in environ.get("RUNTIME_DIRECTORY", "").split(":"):
        return SYSTEM_DIRECTORY
    failures = []
    for directory in directories(environ, uid):
        try:
            if directory == SYSTEM_DIRECTORY and uid != 0:
                continue
            directory.mkdir(mode=0o700, exist_ok=True)
            status = directory.lstat()
        except OSError as error:
            failures.append(f"{directory} ({(error.strerror or str(error)).lower()})")
            continue
        if stat.S_ISDIR(status.st_mode) and status.st_uid == uid and not status.st_mode & 0o022:
            return directory
        failures.append(f"{directory} (not a directory that only uid {uid} may write)")
    raise EndpointError(
        f"no place for the push socket: {', '.join(failures)}; name one with --push.endpoint=ipc:///PATH/{SOCKET}"
    )


def push_path(endpoints: Sequence[str], environ: Mapping[str, str], uid: int) -> Path:
    """The first socket that is a file, or would be: what belongs to one daemon alone lies beside it, under its name."""
    if not endpoints:
        return default_directory(environ, uid) / SOCKET
    paths = (Path(one.removeprefix("ipc://")) for one in endpoints if one.startswith("ipc://"))
    by_port = f"push-{endpoints[0].rpartition(':')[2]}.sock"
    return next(paths, None) or default_directory(environ, uid) / by_port


def token_path(endpoints: Sequence[str], environ: Mapping[str, str], uid: int) -> Path:
    """Where the API's token is kept: ``push.token`` beside ``push.sock``."""
    return push_path(endpoints, environ, uid).with_suffix(".token")


class Lock:
    """Holds a socket's path against other daemons: ZeroMQ lets a second bind steal it without a word.

    Args:
        path: The socket; the lock is a file beside it, which stays.

    Raises:
        EndpointError: Another daemon holds it, something else lies there, or the directory cannot be written.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_absolute() or len(os.fsencode(path)) > PATH_BYTES:
            raise EndpointError(f"ipc://{path}: the path has to begin with a / and to be of at most {PATH_BYTES} bytes")
        self._path = path
        lock = path.with_name(path.name + ".lock")
        try:
            if path.exists() and not path.is_socket():
                raise EndpointError(f"{path} is there and is no socket; {ELSEWHERE}")
            self._file = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            self._hold()
            if path.exists() and not deaf(path):
                os.close(self._file)
                raise EndpointError(f"{path}: a program that is no trackside daemon listens there; {ELSEWHERE}")
            path.unlink(missing_ok=True)  # left over from a daemon that was killed: nobody holds the lock
        except OSError as error:
            raise EndpointError(
                f"{lock}: {(error.strerror or str(error)).lower()}; make its directory writable for uid {os.getuid()},"
                f" or {ELSEWHERE}"
            ) from error

    def _hold(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._file, 32).decode(errors="replace").strip() or "unknown"
            os.close(self._file)
            raise EndpointError(
                f"{self._path}: another trackside daemon listens there (pid {holder}); stop it, or give this one a"
                f" place of its own with {ANOTHER}"
            ) from None
        os.ftruncate(self._file, 0)
        os.write(self._file, f"{os.getpid()}\n".encode())

    def release(self) -> None:
        """Take the socket away and let go."""
        self._path.unlink(missing_ok=True)
        os.close(self._file)
