"""Find a daemon's push socket."""

import grp
import os
import re
import socket
import stat
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from trackside.environment import keys
from trackside.environment.keys import is_loopback
from trackside.os_errors import os_error_text
from trackside.patterns import pattern

SOCKET = "push.sock"
SYSTEM_SOCKET_DIRECTORY = Path("/run/trackside")
_TCP = pattern(r"tcp://.+:(\d{1,5})", re.ASCII)

# Failures that starting a daemon would cure.
_CURABLE = pattern(r"\((not found|nobody listens there|does not answer)")


def directories(environ: Mapping[str, str], uid: int) -> Iterator[Path]:
    """Yield the directories in which a user's daemon, then the system's, may have its push socket.

    A ``$XDG_RUNTIME_DIR`` that can be used is the only one of the user: others may be of another job of the same user.
    """
    # Never $TMPDIR: it can differ per job.
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if runtime:
        yield Path(runtime) / "trackside"
    if not (runtime and os.access(runtime, os.W_OK | os.X_OK)):
        yield Path(f"/run/user/{uid}/trackside")
        yield Path(f"/tmp/trackside-{uid}")  # noqa: S108  its owner and mode are checked before it is used
    yield SYSTEM_SOCKET_DIRECTORY


def named_endpoint(explicit: str | None, environ: Mapping[str, str]) -> str:
    """Return the endpoint that the user named, in the program or by ``$TRACKSIDE_ENDPOINT``; empty if there is none."""
    return explicit or environ.get("TRACKSIDE_ENDPOINT", "")


def origin(endpoint: str, explicit: str | None, environ: Mapping[str, str]) -> str:
    """Return why `find` has chosen this endpoint."""
    if explicit:
        return "named by the program"
    if environ.get("TRACKSIDE_ENDPOINT"):
        return "named by $TRACKSIDE_ENDPOINT"
    directory = Path(endpoint.removeprefix("ipc://")).parent
    if directory == SYSTEM_SOCKET_DIRECTORY:
        return "the system's daemon; this user has none"
    if environ.get("XDG_RUNTIME_DIR") and directory == Path(environ["XDG_RUNTIME_DIR"]) / "trackside":
        return "in $XDG_RUNTIME_DIR"
    return "this user's daemon; no $XDG_RUNTIME_DIR keeps it apart"


def advice(named: str, failures: list[str]) -> str:
    """Return how to start a daemon if none was found; empty if that cannot help.

    Args:
        named: Endpoint that the user named, or empty.
        failures: Failures of `find`.
    """
    is_local = named.startswith("ipc:///") or is_loopback(named)
    if named and not (is_local and _CURABLE.search(failures[0])):
        return ""
    return f"; start it with: trackside daemon{named and f' --push.endpoint={named}'}"


def find(explicit: str | None, environ: Mapping[str, str], uid: int | None = None) -> tuple[str | None, list[str]]:
    """Return the endpoint to connect to, or None, and for each failed place ``PLACE (REASON)``.

    Args:
        explicit: Endpoint that the user named: ``ipc://PATH`` or ``tcp://HOST:PORT``.
        environ: Environment. ``$TRACKSIDE_ENDPOINT`` comes next; if neither names an endpoint, `directories` are
            searched. ``$TRACKSIDE_KEY_FILE`` names the key for a daemon on another machine.
        uid: User whose sockets are trusted, in addition to the system's; default: the user of this process.
    """
    uid = os.getuid() if uid is None else uid
    if endpoint := named_endpoint(explicit, environ):
        reason = _unfit_name(endpoint, environ)
        return (None, [f"{endpoint} ({reason})"]) if reason else (endpoint, [])
    failures: list[str] = []
    for directory in dict.fromkeys(directories(environ, uid)):  # $XDG_RUNTIME_DIR is usually /run/user/UID, too
        path = directory / SOCKET
        reason = _unfit(path, None if directory == SYSTEM_SOCKET_DIRECTORY else uid)
        if not reason:
            return f"ipc://{path}", failures
        failures.append(f"{path} ({reason})")
    return None, failures


def _unfit_name(endpoint: str, environ: Mapping[str, str]) -> str:
    """Return why an endpoint that the user named cannot be used; empty if it can."""
    if endpoint.startswith("ipc://"):
        return _unfit(Path(endpoint.removeprefix("ipc://")), None)
    match = _TCP.fullmatch(endpoint)
    if match is None or int(match[1]) > 65535:
        return "neither ipc://PATH nor tcp://HOST:PORT"
    try:
        keys.for_endpoint(endpoint, environ)
    except keys.KeyFileError as error:
        return str(error)
    return ""


def _unfit(path: Path, owner: int | None) -> str:
    """Return why a socket cannot be used; empty if it can.

    With an *owner*, the socket and its directory must belong to that user, and nobody else may write there.
    """
    try:
        status, directory = path.stat(), path.parent.stat()
    except PermissionError:
        return _denied(path.parent, stat.S_IXGRP)
    except (OSError, ValueError) as error:  # a path with a NUL byte
        reason = os_error_text(error)
        return "not found" if isinstance(error, FileNotFoundError) else reason
    if not stat.S_ISSOCK(status.st_mode):
        return "not a socket"
    # Otherwise another user could create the directory in /tmp first, and receive the pushes.
    if owner is not None and {status.st_uid, directory.st_uid} != {owner}:
        return f"belongs to another user, uid {status.st_uid}"
    if owner is not None and directory.st_mode & 0o022:
        return "others may write to its directory"
    # connect(2) needs the permission to write to the socket (unix(7)).
    return socket_failure(path) if os.access(path, os.W_OK) else _denied(path, stat.S_IWGRP)


def _denied(path: Path, needed: int) -> str:
    """Return that this user has no permission for a path, with the group that has it, if there is one."""
    try:
        status = path.stat()
        group = status.st_gid if status.st_mode & needed else None
    except OSError:
        group = None
    return "permission denied" if group is None else f"permission denied: join the group {_group_name(group)}"


@lru_cache(8)  # every search for a daemon needs it, and a directory service may be slow
def _group_name(group: int) -> str:
    try:
        return grp.getgrgid(group).gr_name
    except (KeyError, OSError):
        return str(group)


def socket_failure(path: Path) -> str:
    """Return why nothing can be reached at a socket; empty if something listens there."""
    # The socket file of a killed daemon stays, and ZeroMQ would wait there for ever.
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)
            probe.connect(str(path))
    except BlockingIOError:  # its queue is full, so something listens
        return ""
    except ConnectionRefusedError:
        return "nobody listens there"
    except OSError as error:  # also if no file descriptor is left
        return os_error_text(error)
    return ""
