"""Where the push socket is bound, that no other daemon has it, and which group may push to it."""

from __future__ import annotations

import grp
import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from trackside.transport.discovery import SOCKET, SYSTEM_DIRECTORY, deaf, directories
from trackside.transport.keys import is_loopback
from trackside_daemon.linux.file_lock import FileLock, HeldError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


PATH_BYTES = 107
"""What sockaddr_un has room for."""

GROUP = "trackside"
"""Whose members push to a system daemon, unless it is told another."""

TCP = re.compile(r"tcp://(?:[A-Za-z0-9*][A-Za-z0-9.-]*|\[[0-9A-Fa-f:.]+(?:%\w+)?\]):(\d{1,5}|\*)", re.ASCII)

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


def require_keys(ports: Sequence[str], keys: str) -> None:
    """See to it that nobody on another machine can push without a key.

    Args:
        ports: The endpoints that are no Unix sockets.
        keys: The directory of keys; empty for none.

    Raises:
        EndpointError: One can be reached from other machines and there are no keys, is no endpoint, or there is none to
            use the keys for.
    """
    for endpoint in ports:
        found = TCP.fullmatch(endpoint)
        if found is None or (found[1] != "*" and int(found[1]) > 65535):
            raise EndpointError(f"{endpoint}: pushes are taken at ipc:///PATH or tcp://HOST:PORT")
        if not keys and not is_loopback(endpoint):
            raise EndpointError(
                f"{endpoint}: other machines reach it, so clients need keys: make them with `trackside keys DIR` and start"
                " with --push.keys=DIR"
            )
    if keys and not ports:
        raise EndpointError(
            "--push.keys is for clients that come by TCP, and there is no such endpoint; add one, such as"
            " --push.endpoint=tcp://0.0.0.0:21791"
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


def group_id(group: str, path: Path) -> int | None:
    """The group that a socket at *path* is for; None when it is for its user alone.

    Args:
        group: What the user named, by name or number; empty for none, which is `GROUP` in the system's directory.
        path: The socket.

    Raises:
        EndpointError: There is no such group.
    """
    if not group and path.parent != SYSTEM_DIRECTORY:
        return None
    if group.isdecimal():
        return int(group)
    try:
        return grp.getgrnam(group or GROUP).gr_gid
    except KeyError:
        origin = "--push.group" if group else path
        raise EndpointError(
            f"{origin}: there is no group {group or GROUP}; make it with: groupadd --system {group or GROUP}, or name"
            f" another{'' if group else ' with --push.group'}"
        ) from None


def lend(path: Path, group: int) -> None:
    """Give a group what it needs of a directory or a socket: of a socket, to bind it alone gives others no write.

    Raises:
        EndpointError: It cannot be given away to that group.
    """
    try:
        if path.stat().st_gid != group:  # else it is not asked for: some seccomp filters refuse chown(2) as such
            os.chown(path, -1, group)
        path.chmod(0o750 if path.is_dir() else 0o660)
    except (OSError, OverflowError) as error:
        raise EndpointError(
            f"{path}: uid {os.getuid()} cannot give it to group {_named(group)}: not a member of it; add this user with:"
            f" usermod --append --groups {_named(group)} USER, or name another group with --push.group"
        ) from error


def admit(directory: Path, group: int, *, named: bool) -> None:
    """See to it that a group can enter a socket's directory; one that the user named is left as it is.

    Raises:
        EndpointError: It cannot.
    """
    status = directory.stat()
    if status.st_mode & (stat.S_IXGRP if status.st_gid == group else stat.S_IXOTH):
        return
    if not named:
        lend(directory, group)
        return
    raise EndpointError(
        f"{directory}: group {_named(group)} cannot enter it to reach the push socket; run: chgrp {_named(group)}"
        f" {directory} && chmod 750 {directory}"
    )


def _named(group: int) -> str:
    try:
        return grp.getgrgid(group).gr_name
    except (KeyError, OverflowError):
        return str(group)


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
            self._lock = FileLock(lock)
            if path.exists() and not deaf(path):
                self._lock.close()
                raise EndpointError(f"{path}: a program that is no trackside daemon listens there; {ELSEWHERE}")
            path.unlink(missing_ok=True)  # left over from a daemon that was killed: nobody holds the lock
        except HeldError as error:
            raise EndpointError(
                f"{path}: another trackside daemon listens there (pid {error}); stop it, or give this one another path"
                f" with {ANOTHER}"
            ) from None
        except OSError as error:
            raise EndpointError(
                f"{lock}: {(error.strerror or str(error)).lower()}; make its directory writable for uid {os.getuid()},"
                f" or {ELSEWHERE}"
            ) from error

    def release(self) -> None:
        """Take the socket away and let go."""
        self._path.unlink(missing_ok=True)
        self._lock.close()
