"""The endpoints of the push socket: their paths, their locks against other daemons, and the group that may push."""

import grp
import os
import re
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

from trackside.environment.discovery import SOCKET, SYSTEM_SOCKET_DIRECTORY, directories, socket_failure
from trackside.environment.keys import is_loopback
from trackside.os_errors import os_error_text
from trackside_daemon.linux.file_lock import FileLock, HeldError

PATH_BYTES = 107  # the longest path of a Unix socket, from sockaddr_un
GROUP = "trackside"  # the group that may push to a system daemon by default

TCP = re.compile(r"tcp://(?:[A-Za-z0-9*][A-Za-z0-9.-]*|\[[0-9A-Fa-f:.]+(?:%\w+)?\]):(\d{1,5}|\*)", re.ASCII)

ANOTHER = "--push.endpoint=ipc:///PATH"
ELSEWHERE = f"choose another path with {ANOTHER}"


class EndpointError(Exception):
    """The socket cannot be bound; the message states why and what to do."""


def default_directory(environ: Mapping[str, str], uid: int) -> Path:
    """Return the first directory that clients search and that this daemon may create, with mode 0700.

    A service manager that created ``/run/trackside`` for the daemon names it in $RUNTIME_DIRECTORY.

    Raises:
        EndpointError: No directory can be used.
    """
    if str(SYSTEM_SOCKET_DIRECTORY) in environ.get("RUNTIME_DIRECTORY", "").split(":"):
        return SYSTEM_SOCKET_DIRECTORY
    failures = []
    for directory in directories(environ, uid):
        try:
            if directory == SYSTEM_SOCKET_DIRECTORY and uid != 0:
                continue
            directory.mkdir(mode=0o700, exist_ok=True)
            status = directory.lstat()  # another user may have put a link into /tmp
        except OSError as error:
            failures.append(f"{directory} ({os_error_text(error)})")
            continue
        if stat.S_ISDIR(status.st_mode) and status.st_uid == uid and not status.st_mode & 0o022:
            return directory
        failures.append(f"{directory} (not a directory that only uid {uid} may write)")
    raise EndpointError(
        f"no directory for the push socket: {', '.join(failures)}; name one with --push.endpoint=ipc:///PATH/{SOCKET}"
    )


def require_keys(ports: Sequence[str], keys: str) -> None:
    """Check that no client of another machine can push without a key.

    Args:
        ports: The endpoints other than Unix sockets.
        keys: The directory of keys; empty for none.

    Raises:
        EndpointError: An endpoint is invalid, or reachable from other machines without keys; or there are keys and no
            endpoint that uses them.
    """
    for endpoint in ports:
        match = TCP.fullmatch(endpoint)
        if match is None or (match[1] != "*" and int(match[1]) > 65535):
            raise EndpointError(f"{endpoint}: pushes are accepted at ipc:///PATH or tcp://HOST:PORT")
        if not keys and not is_loopback(endpoint):
            raise EndpointError(
                f"{endpoint}: other machines reach it, so clients need keys: make them with `trackside keys DIR` and start"
                " with --push.keys=DIR"
            )
    if keys and not ports:
        raise EndpointError(
            "--push.keys is for TCP clients, but there is no TCP endpoint; add one, such as"
            " --push.endpoint=tcp://0.0.0.0:21791"
        )


def push_path(endpoints: Sequence[str], environ: Mapping[str, str], uid: int) -> Path:
    """Return the path of the first Unix socket, or one derived from the port; the daemon's own files have its name."""
    if not endpoints:
        return default_directory(environ, uid) / SOCKET
    paths = (Path(endpoint.removeprefix("ipc://")) for endpoint in endpoints if endpoint.startswith("ipc://"))
    by_port = f"push-{endpoints[0].rpartition(':')[2]}.sock"
    return next(paths, None) or default_directory(environ, uid) / by_port


def token_path(endpoints: Sequence[str], environ: Mapping[str, str], uid: int) -> Path:
    """Return the path of the API's token: ``push.token`` next to ``push.sock``."""
    return push_path(endpoints, environ, uid).with_suffix(".token")


def group_id(group: str, path: Path) -> int | None:
    """Return the group that may use a socket at *path*; None if only its user may.

    Args:
        group: The configured group, by name or number; empty for none, which means `GROUP` in the system's directory.
        path: The socket.

    Raises:
        EndpointError: There is no such group.
    """
    if not group and path.parent != SYSTEM_SOCKET_DIRECTORY:
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


def grant(path: Path, group: int) -> None:
    """Give a group access to a directory or a socket; a socket that is just bound is not writable for others.

    Raises:
        EndpointError: This user may not.
    """
    try:
        if path.stat().st_gid != group:  # some seccomp filters refuse every chown(2)
            os.chown(path, -1, group)
        path.chmod(0o750 if path.is_dir() else 0o660)
    except (OSError, OverflowError) as error:
        raise EndpointError(
            f"{path}: uid {os.getuid()} cannot give it to group {_named(group)}: not a member of it; add this user with:"
            f" usermod --append --groups {_named(group)} USER, or name another group with --push.group"
        ) from error


def require_access(directory: Path, group: int, *, named: bool) -> None:
    """Ensure that a group can enter a socket's directory; a directory that the user *named* is not changed.

    Raises:
        EndpointError: The group cannot enter it.
    """
    status = directory.stat()
    if status.st_mode & (stat.S_IXGRP if status.st_gid == group else stat.S_IXOTH):
        return
    if not named:
        grant(directory, group)
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


class SocketLock:
    """Locks a socket's path against other daemons, since ZeroMQ lets a second bind take it over silently.

    Args:
        path: The socket; the lock is a file next to it, which stays.

    Raises:
        EndpointError: Another daemon has the lock, another file is in its place, or the directory is not writable.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_absolute() or len(os.fsencode(path)) > PATH_BYTES:
            raise EndpointError(f"ipc://{path}: the path must begin with a / and have at most {PATH_BYTES} bytes")
        self._path = path
        lock = path.with_name(path.name + ".lock")
        try:
            if path.exists() and not path.is_socket():
                raise EndpointError(f"{path} exists and is not a socket; {ELSEWHERE}")
            self._lock = FileLock(lock)
            if path.exists() and not socket_failure(path):
                self._lock.close()
                raise EndpointError(f"{path}: another program, not a trackside daemon, listens there; {ELSEWHERE}")
            path.unlink(missing_ok=True)  # left by a daemon that was killed, since the lock is free
        except HeldError as error:
            raise EndpointError(
                f"{path}: another trackside daemon listens there (pid {error}); stop it, or give this one another path"
                f" with {ANOTHER}"
            ) from None
        except OSError as error:
            raise EndpointError(
                f"{lock}: {os_error_text(error)}; make its directory writable for uid {os.getuid()}, or {ELSEWHERE}"
            ) from error

    def release(self) -> None:
        """Remove the socket and release the lock."""
        # The lock file stays: another daemon may have opened it already, and would lock a deleted file.
        self._path.unlink(missing_ok=True)
        self._lock.close()
