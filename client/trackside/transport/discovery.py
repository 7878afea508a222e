"""Where a daemon's push socket is looked for."""

from __future__ import annotations

import grp
import os
import re
import socket
import stat
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from trackside.transport import keys
from trackside.transport.keys import is_loopback

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SOCKET = "push.sock"
SYSTEM_DIRECTORY = Path("/run/trackside")
_TCP = re.compile(r"tcp://.+:(\d{1,5})", re.ASCII)


_CURABLE = re.compile(r"\((absent|nobody listens there|does not answer)")
"""A place that is no use only since no daemon is there."""


def directories(environ: Mapping[str, str], uid: int) -> Iterator[Path]:
    """Where the push socket of a user's daemon, then the system's, may be. Never $TMPDIR: it can differ per job."""
    if environ.get("XDG_RUNTIME_DIR"):
        yield Path(environ["XDG_RUNTIME_DIR"]) / "trackside"
    yield Path(f"/run/user/{uid}/trackside")
    yield Path(f"/tmp/trackside-{uid}")  # noqa: S108  its owner and mode are checked before it is used
    yield SYSTEM_DIRECTORY


def named(explicit: str | None, environ: Mapping[str, str]) -> str:
    """The one endpoint that the user named, in the program or by ``$TRACKSIDE_ENDPOINT``; empty when none was."""
    return explicit or environ.get("TRACKSIDE_ENDPOINT", "")


def advice(named: str, failures: list[str]) -> str:
    """How to start a daemon where none was found, if that can help; empty when it cannot.

    Args:
        named: The one endpoint that the user named; empty when none was.
        failures: Of `find`.
    """
    here = named.startswith("ipc:///") or is_loopback(named)
    if named and not (here and _CURABLE.search(failures[0])):
        return ""
    return f"; start it with: trackside daemon{named and f' --push.endpoint={named}'}"


def find(explicit: str | None, environ: Mapping[str, str], uid: int | None = None) -> tuple[str | None, list[str]]:
    """The endpoint to connect to, or None; and for each place that was no use, why.

    Args:
        explicit: An endpoint that the user named: ``ipc://PATH`` or ``tcp://HOST:PORT``.
        environ: ``$TRACKSIDE_ENDPOINT`` comes next; only where neither names one are `directories` looked through.
            ``$TRACKSIDE_KEY_FILE`` names the key that a daemon on another machine is reached with.
        uid: Whose sockets are trusted, beside the system's; default this process's user.
    """
    uid = os.getuid() if uid is None else uid
    if endpoint := named(explicit, environ):
        reason = _unfit_name(endpoint, environ)
        return (None, [f"{endpoint} ({reason})"]) if reason else (endpoint, [])
    failures: list[str] = []
    for directory in dict.fromkeys(directories(environ, uid)):
        path = directory / SOCKET
        reason = _unfit(path, None if directory == SYSTEM_DIRECTORY else uid)
        if not reason:
            return f"ipc://{path}", failures
        failures.append(f"{path} ({reason})")
    return None, failures


def _unfit_name(endpoint: str, environ: Mapping[str, str]) -> str:
    """Why an endpoint that the user named is not to be used; empty when it is."""
    if endpoint.startswith("ipc://"):
        return _unfit(Path(endpoint.removeprefix("ipc://")), None)
    found = _TCP.fullmatch(endpoint)
    if found is None or int(found[1]) > 65535:
        return "neither ipc://PATH nor tcp://HOST:PORT"
    try:
        keys.for_endpoint(endpoint, environ)
    except keys.KeyFileError as error:
        return str(error)
    return ""


def _unfit(path: Path, owner: int | None) -> str:
    """Why a socket is not to be used; empty when it is.

    With an *owner*, it and its directory must be theirs, and nobody else may write there.
    """
    try:
        status, directory = path.stat(), path.parent.stat()
    except PermissionError:
        return _denied(path.parent, stat.S_IXGRP)
    except (OSError, ValueError) as error:  # a path with a NUL byte
        said = (getattr(error, "strerror", None) or str(error)).lower()
        return "absent" if isinstance(error, FileNotFoundError) else said
    if not stat.S_ISSOCK(status.st_mode):
        return "not a socket"
    if owner is not None and {status.st_uid, directory.st_uid} != {owner}:
        return f"belongs to another user, uid {status.st_uid}"
    if owner is not None and directory.st_mode & 0o022:
        return "others may write to its directory"
    return deaf(path) if os.access(path, os.W_OK) else _denied(path, stat.S_IWGRP)


def _denied(path: Path, needed: int) -> str:
    """That a socket or its directory is closed to this user, and the group that it is open to if there is one."""
    try:
        status = path.stat()
        group = status.st_gid if status.st_mode & needed else None
    except OSError:
        group = None
    return "permission denied" if group is None else f"permission denied: join the group {_group_name(group)}"


@lru_cache(8)  # it is asked at every look for a daemon, and a directory service may be slow
def _group_name(group: int) -> str:
    try:
        return grp.getgrgid(group).gr_name
    except KeyError:
        return str(group)


def deaf(path: Path) -> str:
    """Why nobody can be reached at a socket: the file of a daemon that was killed stays, and ZeroMQ would wait there."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except BlockingIOError:  # its queue is full, so somebody has it
            return ""
        except ConnectionRefusedError:
            return "nobody listens there"
        except OSError as error:
            return (error.strerror or str(error)).lower()
    return ""
