"""Search for the history that a command is about: that of a running daemon, else a file.

Each daemon writes its address and its token to files next to its push socket.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

from trackside.environment import discovery
from trackside.os_errors import file_error_text
from trackside.transport.announcement import connectable
from trackside_daemon.cli.sources import credentials
from trackside_daemon.cli.sources.api_source import ApiSource
from trackside_daemon.cli.sources.source import LockedError, Source, SourceError
from trackside_daemon.linux.socket_address import own_addresses, strangers

VARIABLE = "TRACKSIDE_STORAGE__PATH"  # variable of the daemon's setting

FILE_BYTES = 4096  # far more than an address or a token has

_VISIBLE = re.compile(r"[!-~]*")  # ASCII without spaces and control characters


def find_history(directory: Path | None, url: str) -> Source:
    """Return the history that a command is about.

    Args:
        directory: The directory that the user named; None for that of the running daemon, or the default one.
        url: The daemon that the user named, with or without ``#token=…``; empty for one of this machine.

    Raises:
        SourceError: The user gave both, or *url* is invalid, or the running daemon rejects the credentials.
    """
    from trackside_daemon.cli.errors import warn

    if url and directory is not None:
        raise SourceError("--url and --storage.path name two histories; give only one")
    if url:
        return _named(url)
    try:
        for daemon in _running():
            if directory is None or _same(directory, daemon.status.get("storage_path")):
                return daemon.source
    except LockedError as error:
        if directory is None:
            raise
        warn(str(error))
    for problem in _untrusted():
        warn(problem)
    if directory is None and os.environ.get(VARIABLE):
        directory = Path(os.environ[VARIABLE])
    from trackside_daemon.cli.sources.file_source import FileSource  # its import takes as long as the start of Python

    return FileSource(directory, warn)


def find_daemon(url: str) -> ApiSource:
    """Return the daemon that the user named, else the first of this machine that answers.

    Raises:
        SourceError: No daemon answers, or *url* is invalid.
    """
    return _named(url) if url else find_local_daemon().source


class LocalDaemon(NamedTuple):
    """A daemon of this machine that answers."""

    source: ApiSource  # its API
    status: dict[str, Any]  # its answer to a status request
    file: Path  # the file with its address, which is the same after a restart


def find_directory(directory: Path | None) -> Path:
    """Return a history's directory: the one that the user named, that of the running daemon, or the default one."""
    from trackside_daemon.history.directory import default_directory

    if directory is not None:
        return directory
    try:
        return Path(find_local_daemon().status["storage_path"])
    except (SourceError, KeyError):
        return Path(os.environ.get(VARIABLE) or default_directory(os.environ, os.getuid()))


def find_local_daemon(file: Path | None = None) -> LocalDaemon:
    """Return the daemon whose address is in *file*; without a file, the first that answers.

    Raises:
        SourceError: It does not answer.
    """
    other = ""
    for daemon in _running():
        if file in {None, daemon.file}:
            return daemon
        other = other or daemon.source.url
    if other:
        raise SourceError(f"the daemon of {file} does not answer, but another does, at {other} (see --url)", 1)
    nobody = "no daemon answers here; start one with trackside daemon, or give another with --url=URL"
    raise SourceError(next(_untrusted(), nobody), 1)


def _named(url: str) -> ApiSource:
    scheme = "https" if credentials.load().tls is not None else "http"
    parts = split_address(url if "//" in url else f"{scheme}://{url}")
    if parts is None:
        raise SourceError(f"--url: {url!r} is not an address such as http://127.0.0.1:21790")
    address = f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/")
    local = {endpoint.address: endpoint.token for endpoint in local_endpoints() if not endpoint.problem}
    token = parts.fragment.partition("token=")[2] or local.get(address, "")
    return ApiSource(address, token, "--url also accepts the link that the daemon prints, with #token=…")


def _running() -> Iterator[LocalDaemon]:
    """Yield the daemons of this machine that answer.

    Raises:
        LockedError: At the end, if one of them rejects the credentials.
    """
    locked: LockedError | None = None
    for endpoint in local_endpoints():
        if endpoint.problem:
            continue
        source = ApiSource(endpoint.address, endpoint.token)
        try:
            yield LocalDaemon(source, source.status(), endpoint.file)
        except LockedError as error:
            locked = locked or error
        except SourceError:  # left by a killed daemon
            continue
    if locked is not None:
        raise locked


def _untrusted() -> Iterator[str]:
    """Yield why commands ignore an endpoint that others can change, and the remedy."""
    return (f"{endpoint.problem}; {endpoint.remedy}" for endpoint in local_endpoints() if endpoint.remedy)


def local_endpoints() -> Iterator[DaemonAddress]:
    """Yield the endpoints of daemons that this user may trust: its own and the system's, or only the one it named."""
    yield from filter(None, map(endpoint_of, _sockets(os.getuid())))


def _sockets(uid: int) -> list[Path]:
    """Return the push sockets to search: as a training does; the usual ones if it pushes over the network."""
    named = discovery.named_endpoint(None, os.environ)
    if named.startswith("ipc://"):
        return [Path(named.removeprefix("ipc://"))]
    if named and discovery.find(None, os.environ, uid)[0] is None:
        return []
    return [directory / discovery.SOCKET for directory in dict.fromkeys(discovery.directories(os.environ, uid))]


def _same(directory: Path, other: object) -> bool:
    try:
        return bool(other) and directory.samefile(str(other))
    except (OSError, ValueError):
        return False


class DaemonAddress(NamedTuple):
    """The address and the token that a daemon has written next to its push socket."""

    file: Path  # the file with the address
    owner: int  # user id of its owner; -1 if others can change it
    address: str = ""  # ``http://HOST:PORT`` or ``https://HOST:PORT``
    token: str = ""  # token of the API
    problem: str = ""  # why commands do not use the files; empty if they do
    remedy: str = ""  # how to fix the problem; empty if a restart of the daemon fixes it


class _UntrustedError(Exception):
    """Another user may have made a file; the arguments are the problem and the remedy."""


def endpoint_of(push_socket: Path) -> DaemonAddress | None:
    """Return the endpoint of the daemon of a push socket; None if there is none that this user may query."""
    try:
        file = push_socket.with_suffix(".address")
        with _opened_directory(file.parent) as directory:
            return _endpoint(file, directory)
    except _UntrustedError as error:
        return DaemonAddress(file, -1, "", "", *error.args)
    except (OSError, ValueError):  # ValueError: an endpoint without a name, or with a NUL
        return None


def split_address(url: str) -> SplitResult | None:
    """Return the parts of an HTTP address; None if it is invalid."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        return None
    return parts if valid else None


@contextmanager
def _opened_directory(path: Path) -> Iterator[int]:
    """Yield a descriptor of a directory, through which no other directory can replace it between the checks.

    Raises:
        _UntrustedError: It is a symbolic link.
        OSError: It does not exist, or cannot be opened.
    """
    # O_PATH: a member of its group may search the system's directory, but not list it.
    flags = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | getattr(os, "O_PATH", 0)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENOTDIR} and path.is_symlink():
            raise _UntrustedError(f"{path} is a symbolic link", "remove it, or name the directory itself") from None
        raise
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _endpoint(file: Path, directory: int) -> DaemonAddress | None:
    """Return the endpoint of an open directory; None if there is none, or it is of a daemon that serves another user.

    Raises:
        _UntrustedError: Other users can change the files.
        OSError: There is no such file, or this user may not search the directory.
    """
    uid, status = os.getuid(), os.fstat(directory)
    trusted = {uid, 0}
    # Only in these directories is another owner wrong. The system's and one that the user named may be another user's.
    own = file.parent in set(discovery.directories(os.environ, uid)) - {discovery.SYSTEM_SOCKET_DIRECTORY}
    if status.st_uid not in trusted:
        if not own:
            return None
        raise _UntrustedError(
            f"{file.parent} belongs to another user, uid {status.st_uid}, so commands ignore it",
            "remove it, or ask an administrator to",
        )
    owner = os.stat(file.name, dir_fd=directory, follow_symlinks=False).st_uid
    if owner not in trusted and not own:
        return None
    # With the sticky bit, as /tmp has it, others may create files but not replace those of this user.
    if status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX:
        raise _UntrustedError(f"others may write to {file.parent}", f"run: chmod go-w {file.parent}")
    secret = file.with_suffix(".token")
    try:
        address = connectable(_read(file, directory, 0o022))
        token = _read(secret, directory, 0o077)
    except OSError as error:
        return DaemonAddress(file, owner, problem=file_error_text(error))
    parts = split_address(address)
    # Nothing but scheme, host and port: a path or a fragment could hide what follows the port.
    if parts is None or not parts.port or address != f"{parts.scheme}://{parts.netloc}" or "@" in parts.netloc:
        return DaemonAddress(file, owner, problem=f"{file}: contains no address")
    if not own_addresses(parts.hostname or "", socket.AI_NUMERICHOST):
        raise _UntrustedError(
            f"{file}: {parts.hostname} is not an address of this machine", "delete the file and restart that daemon"
        )
    if others := strangers(parts.hostname or "", parts.port, ()):  # once the daemon was killed, anybody may
        return DaemonAddress(file, owner, problem=f"{file}: uid {others[0]} listens at {address}, and not that daemon")
    return DaemonAddress(file, owner, address, token)


def _read(path: Path, directory: int, closed: int) -> str:
    """Return the text of a file of this user or root in an open directory; empty if it is not visible ASCII.

    Args:
        path: The file.
        directory: A descriptor of its directory.
        closed: Permission bits that the file must not have.

    Raises:
        _UntrustedError: It is a link, or of another user, or others may use it.
        OSError: It cannot be read; `filename` is *path*.
    """
    try:
        # O_NONBLOCK: a FIFO would block the command.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(path.name, flags, dir_fd=directory)
        try:
            status = os.fstat(descriptor)
            if stat.S_IFMT(status.st_mode) not in {stat.S_IFREG, stat.S_IFDIR}:  # a directory fails below
                raise OSError(errno.EINVAL, "not a regular file")
            content = os.read(descriptor, FILE_BYTES)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _UntrustedError(f"{path} is a symbolic link", "delete it and restart that daemon") from None
        raise OSError(error.errno, error.strerror, str(path)) from None
    if status.st_uid not in {os.getuid(), 0}:
        raise _UntrustedError(f"{path} belongs to another user, uid {status.st_uid}", "delete it")
    if status.st_nlink != 1:  # another user may link any file of this user, where fs.protected_hardlinks is 0
        raise _UntrustedError(f"{path} has several names (hard links)", "delete it and restart that daemon")
    if status.st_mode & closed:
        use = "write to" if status.st_mode & 0o022 else "read"
        raise _UntrustedError(f"others may {use} {path}", f"run: chmod 600 {path}")
    text = content.decode("latin-1").strip()
    return text if _VISIBLE.fullmatch(text) else ""
