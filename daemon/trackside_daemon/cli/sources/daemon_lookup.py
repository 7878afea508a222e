"""Finds the history that a command is about: a daemon's that answers, by what it has written beside its socket, or a file."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

from trackside.transport import discovery
from trackside_daemon.cli.sources import credentials
from trackside_daemon.cli.sources.errors import LockedError, SourceError
from trackside_daemon.cli.sources.source import ApiSource, FileSource, Source

if TYPE_CHECKING:
    from collections.abc import Iterator

VARIABLE = "TRACKSIDE_STORAGE__PATH"
"""The daemon's setting as a variable."""

_ANYWHERE = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104  what it listens at, and where it is asked


def find(directory: Path | None, url: str) -> Source:
    """The history that a command is about.

    Args:
        directory: The one that the user named; None for the daemon's that is up, or the default one.
        url: The daemon that the user named, with ``#token=…`` perhaps; empty for one of this machine.

    Raises:
        SourceError: The user named both, or no address, or the daemon that is up wants other credentials.
    """
    if url and directory is not None:
        raise SourceError("--url and --storage.path name two histories; give one of them")
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


def daemon(url: str) -> ApiSource:
    """The daemon that a command is about: the one that the user named, else the first of this machine that answers.

    Raises:
        SourceError: There is none, or the user named no address.
    """
    return _named(url) if url else here().source


class Running(NamedTuple):
    """A daemon of this machine that answers.

    Attributes:
        status: What it says of itself.
        file: With its address, beside its socket: the same after a restart.
    """

    source: ApiSource
    status: dict[str, Any]
    file: Path


def here(file: Path | None = None) -> Running:
    """A daemon of this machine: the one that has its address in *file*, without one the first that answers.

    Raises:
        SourceError: It does not answer.
    """
    other = ""
    for found in _running():
        if file in {None, found.file}:
            return found
        other = other or found.source.url
    if other:
        raise SourceError(f"another daemon answers, at {other} (see --url), and not that of {file}", 1)
    raise SourceError("no daemon answers here; start one with trackside daemon, or name another with --url=URL", 1)


def _named(url: str) -> ApiSource:
    scheme = "https" if credentials.given().encrypted else "http"
    parts = _split(url if "//" in url else f"{scheme}://{url}")
    if parts is None:
        raise SourceError(f"--url: {url!r} is not an address such as http://127.0.0.1:21790")
    address = f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/")
    token = parts.fragment.partition("token=")[2]
    own = {note.address: note.token for note in noted() if not note.problem}
    return ApiSource(
        address, token or own.get(address, ""), "--url also takes the link that the daemon prints, with #token=…"
    )


def _split(url: str) -> SplitResult | None:
    """The parts of an address of HTTP; None of what is none."""
    try:
        parts = urlsplit(url)
        fit = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        return None
    return parts if fit else None


def _running() -> Iterator[Running]:
    """The daemons of this machine that answer.

    Raises:
        LockedError: At the end, when one does not let us in.
    """
    locked: LockedError | None = None
    for note in noted():
        if note.problem:
            continue
        daemon = ApiSource(note.address, note.token)
        try:
            yield Running(daemon, daemon.status(), note.file)
        except LockedError as error:
            locked = locked or error
        except SourceError:  # what a killed daemon has left
            continue
    if locked is not None:
        raise locked


class Note(NamedTuple):
    """What a daemon has written beside its socket.

    Attributes:
        file: The one with the address.
        owner: Its user's id.
        problem: Why it cannot be read; empty when it can.
    """

    file: Path
    owner: int
    address: str = ""
    token: str = ""
    problem: str = ""


def noted() -> Iterator[Note]:
    """The notes of the daemons that this user may trust, its own and the system's: of the one that it named, no other's."""
    yield from filter(None, map(note, _sockets(os.getuid())))


def note(socket: Path) -> Note | None:
    """What the daemon of a socket has written; None when there is nothing that this user may trust."""
    try:
        file = socket.with_suffix(".address")
        owner = file.stat().st_uid
    except (OSError, ValueError):  # ValueError: an endpoint without a name, or with a NUL
        return None
    return _read(file, socket.with_suffix(".token"), owner) if owner in {os.getuid(), 0} else None


def _sockets(uid: int) -> list[Path]:
    """Where daemons are looked for: as a training does, and where it is to push over the network at the usual places."""
    own = discovery.named(None, os.environ)
    if own.startswith("ipc://"):
        return [Path(own.removeprefix("ipc://"))]
    if own and discovery.find(None, os.environ, uid)[0] is None:
        return []
    return [directory / discovery.SOCKET for directory in dict.fromkeys(discovery.directories(os.environ, uid))]


def _read(file: Path, secret: Path, owner: int) -> Note:
    try:
        address = file.read_text(encoding="utf-8").strip()
        token = secret.read_text(encoding="utf-8").strip()
    except OSError as error:
        return Note(file, owner, problem=f"{error.filename}: {(error.strerror or str(error)).lower()}")
    except ValueError:
        address = ""
    for anywhere, here in _ANYWHERE.items():
        address = address.replace(f"//{anywhere}:", f"//{here}:")
    if _split(address) is None:
        return Note(file, owner, problem=f"{file}: no address is in it")
    return Note(file, owner, address, token)


def _same(directory: Path, other: object) -> bool:
    try:
        return bool(other) and directory.samefile(str(other))
    except (OSError, ValueError):
        return False


def _warn(message: str) -> None:
    print(f"trackside: {message}", file=sys.stderr)  # noqa: T201
