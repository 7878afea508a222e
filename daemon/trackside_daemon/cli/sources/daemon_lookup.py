"""Search for the history that a command is about: that of a running daemon, else a file.

Each daemon writes its address and its token to files next to its push socket.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trackside.environment import discovery
from trackside_daemon.cli.sources import credentials
from trackside_daemon.cli.sources.api_source import ApiSource
from trackside_daemon.cli.sources.endpoint_files import Endpoint, endpoint_of, split_address
from trackside_daemon.cli.sources.source import LockedError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trackside_daemon.cli.sources.source import Source

VARIABLE = "TRACKSIDE_STORAGE__PATH"  # variable of the daemon's setting


def find_history(directory: Path | None, url: str) -> Source:
    """Return the history that a command is about.

    Args:
        directory: The directory that the user named; None for that of the running daemon, or the default one.
        url: The daemon that the user named, with or without ``#token=…``; empty for one of this machine.

    Raises:
        SourceError: The user gave both, or *url* is invalid, or the running daemon rejects the credentials.
    """
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
        _warn(str(error))
    for problem in _untrusted():
        _warn(problem)
    if directory is None and os.environ.get(VARIABLE):
        directory = Path(os.environ[VARIABLE])
    from trackside_daemon.cli.sources.file_source import FileSource  # its import takes as long as the start of Python

    return FileSource(directory, _warn)


def find_daemon(url: str) -> ApiSource:
    """Return the daemon that the user named, else the first of this machine that answers.

    Raises:
        SourceError: No daemon answers, or *url* is invalid.
    """
    return _named(url) if url else find_local_daemon().source


class LocalDaemon(NamedTuple):
    """A daemon of this machine that answers.

    Attributes:
        source: Its API.
        status: Its answer to a status request.
        file: The file with its address, which is the same after a restart.
    """

    source: ApiSource
    status: dict[str, Any]
    file: Path


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
    token = parts.fragment.partition("token=")[2]
    local = {endpoint.address: endpoint.token for endpoint in local_endpoints() if not endpoint.problem}
    return ApiSource(
        address, token or local.get(address, ""), "--url also accepts the link that the daemon prints, with #token=…"
    )


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


def local_endpoints() -> Iterator[Endpoint]:
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


def _warn(message: str) -> None:
    print(f"trackside: {message}", file=sys.stderr)  # noqa: T201
