"""Search for the history that a command is about: that of a running daemon, else a file.

Each daemon writes its address and its token to files next to its push socket.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

from trackside.transport import discovery
from trackside_daemon.cli.sources import credentials
from trackside_daemon.cli.sources.api_source import ApiSource
from trackside_daemon.cli.sources.errors import LockedError, SourceError
from trackside_daemon.cli.sources.file_source import FileSource

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trackside_daemon.cli.sources.source import Source

VARIABLE = "TRACKSIDE_STORAGE__PATH"  # variable of the daemon's setting

# By address that a daemon listens on: the address to connect to.
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104  nothing binds here


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
    if directory is None and os.environ.get(VARIABLE):
        directory = Path(os.environ[VARIABLE])
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
    raise SourceError("no daemon answers here; start one with trackside daemon, or give another with --url=URL", 1)


def _named(url: str) -> ApiSource:
    scheme = "https" if credentials.load().tls is not None else "http"
    parts = _split(url if "//" in url else f"{scheme}://{url}")
    if parts is None:
        raise SourceError(f"--url: {url!r} is not an address such as http://127.0.0.1:21790")
    address = f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/")
    token = parts.fragment.partition("token=")[2]
    local = {endpoint.address: endpoint.token for endpoint in local_endpoints() if not endpoint.problem}
    return ApiSource(
        address, token or local.get(address, ""), "--url also accepts the link that the daemon prints, with #token=…"
    )


def _split(url: str) -> SplitResult | None:
    """Return the parts of an HTTP address; None if it is invalid."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        return None
    return parts if valid else None


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


class Endpoint(NamedTuple):
    """The address and the token that a daemon has written next to its push socket.

    Attributes:
        file: The file with the address.
        owner: User id of its owner.
        address: ``http://HOST:PORT`` or ``https://HOST:PORT``.
        token: Token of the API.
        problem: Why the files cannot be read; empty if they can.
    """

    file: Path
    owner: int
    address: str = ""
    token: str = ""
    problem: str = ""


def local_endpoints() -> Iterator[Endpoint]:
    """Yield the endpoints of daemons that this user may trust: its own and the system's, or only the one it named."""
    yield from filter(None, map(endpoint_of, _sockets(os.getuid())))


def endpoint_of(socket: Path) -> Endpoint | None:
    """Return the endpoint of the daemon of a push socket; None if there is none that this user may trust."""
    try:
        file = socket.with_suffix(".address")
        owner = file.stat().st_uid
    except (OSError, ValueError):  # ValueError: an endpoint without a name, or with a NUL
        return None
    # The file of another user could lead passwords and commands to that user's server.
    return _read(file, socket.with_suffix(".token"), owner) if owner in {os.getuid(), 0} else None


def _sockets(uid: int) -> list[Path]:
    """Return the push sockets to search: as a training does; the usual ones if it pushes over the network."""
    named = discovery.named_endpoint(None, os.environ)
    if named.startswith("ipc://"):
        return [Path(named.removeprefix("ipc://"))]
    if named and discovery.find(None, os.environ, uid)[0] is None:
        return []
    return [directory / discovery.SOCKET for directory in dict.fromkeys(discovery.directories(os.environ, uid))]


def _read(file: Path, secret: Path, owner: int) -> Endpoint:
    try:
        address = file.read_text(encoding="utf-8").strip()
        token = secret.read_text(encoding="utf-8").strip()
    except OSError as error:
        return Endpoint(file, owner, problem=f"{error.filename}: {(error.strerror or str(error)).lower()}")
    except ValueError:
        address = ""
    for any_address, loopback in _ANY_ADDRESS.items():
        address = address.replace(f"//{any_address}:", f"//{loopback}:")
    if _split(address) is None:
        return Endpoint(file, owner, problem=f"{file}: contains no address")
    return Endpoint(file, owner, address, token)


def _same(directory: Path, other: object) -> bool:
    try:
        return bool(other) and directory.samefile(str(other))
    except (OSError, ValueError):
        return False


def _warn(message: str) -> None:
    print(f"trackside: {message}", file=sys.stderr)  # noqa: T201
