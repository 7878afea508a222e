"""Directories of files that outlive a process, and safe ways to open such files."""

import errno
import os
import pwd
import re
import stat
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from trackside.os_errors import os_error_text

SYSTEM_DIRECTORY = Path("/var/lib/trackside")


def state_directory(environ: Mapping[str, str], uid: int, etc: Path = Path("/etc")) -> Path:
    """Return the user's state directory, one for each machine, since several often share a home.

    Raises:
        LookupError: The user has no home.
    """
    # A relative $XDG_STATE_HOME must be ignored (XDG Base Directory Specification 0.8).
    state = Path(environ.get("XDG_STATE_HOME", ""))
    if not state.is_absolute():
        state = _home(environ, uid) / ".local" / "state"
    return state / "trackside" / machine_id(etc)


def spool_directory(environ: Mapping[str, str], uid: int) -> Path:
    """Return where a process spools: ``$TRACKSIDE_SPOOL``, else the system's directory if writable, else the user's.

    Raises:
        LookupError: The user has no home.
    """
    return next(spool_directories(environ, uid))


def spool_directories(environ: Mapping[str, str], uid: int) -> Iterator[Path]:
    """Yield the directories in which a process of this user may have spooled, `spool_directory` first.

    Raises:
        LookupError: The user has no home, or a relative path cannot be completed.
    """
    if environ.get("TRACKSIDE_SPOOL"):
        try:
            yield Path(environ["TRACKSIDE_SPOOL"]).expanduser().absolute()
        except (OSError, RuntimeError) as error:
            raise LookupError(f"$TRACKSIDE_SPOOL: {os_error_text(error)}") from None
        return
    system = SYSTEM_DIRECTORY / "spool"
    if os.access(system, os.W_OK | os.X_OK):
        yield system
    yield state_directory(environ, uid) / "spool"


def kept_directory(endpoint: str) -> Path | None:
    """Return where a training keeps its last pushes in case that it is killed, for the daemon of an endpoint and no other.

    None for a daemon of another user or machine.
    """
    place = Path(endpoint.removeprefix("ipc://"))
    try:
        is_own = endpoint.startswith("ipc://") and place.parent.stat().st_uid == place.stat().st_uid == os.getuid()
    except OSError:
        is_own = False
    return place.with_suffix(".kept") if is_own else None


def orphan_directories(endpoint: str) -> list[Path]:
    """Return where an ended process of this user may have left what the daemon of an endpoint has not stored, the kept rows last.

    Raises:
        LookupError: See `spool_directories`.
    """
    kept = kept_directory(endpoint)
    return [*spool_directories(os.environ, os.getuid()), *([] if kept is None else [kept])]


def open_regular(path: Path, *, links: bool = False) -> BinaryIO:
    """Open a regular file for reading; symbolic links only with *links*. The call never blocks, as it would on a FIFO.

    Raises:
        OSError: It cannot be opened, or is not a regular file.
    """
    follow = 0 if links else os.O_NOFOLLOW
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | follow)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # after the open, since the path may be replaced before it
            raise OSError(errno.EINVAL, "not a regular file")  # noqa: TRY301  closed below, as in all cases
        return os.fdopen(descriptor, "rb")
    except OSError:
        os.close(descriptor)
        raise


@lru_cache
def machine_id(etc: Path = Path("/etc")) -> str:
    """Return the machine's id (machine-id(5)), else its host name, as one component of a path."""
    try:
        name = (etc / "machine-id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        name = ""
    if re.fullmatch("[0-9a-f]{32}", name):  # "uninitialized" on a machine that is just starting
        return name
    return re.sub(r"[^\w.-]", "_", os.uname().nodename).lstrip(".") or "localhost"


machine_id()  # now: later a training may have no file descriptor left, and the daemon finds spools by the id


def _home(environ: Mapping[str, str], uid: int) -> Path:
    if environ.get("HOME"):
        return Path(environ["HOME"])
    try:
        return Path(pwd.getpwuid(uid).pw_dir)
    except KeyError:
        raise LookupError(f"uid {uid} has no home and $HOME is not set") from None
