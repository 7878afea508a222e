"""The command doctor: says of each thing that trackside needs whether it is there, and if not, how to mend it."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from trackside.transport import discovery
from trackside.transport.paths import spool_directories
from trackside.transport.spool import SEGMENT_BYTES, SPOOL_BYTES
from trackside_daemon import __version__
from trackside_daemon.cli.commands.doctor_check import Check, Level
from trackside_daemon.linux.users import user_name
from trackside_daemon.model.setting_types import LEAST_BYTES
from trackside_daemon.model.text import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trackside_daemon.cli.sources.daemon_lookup import Note

SOON_DAYS = 30
PROBE_SECONDS = 5.0
LEAST_FREE = 1024**3
"""Bytes; with less on its disk the history will soon be full."""


def doctor() -> None:
    """Look at everything that trackside needs, and say what is wrong and how to mend it.

    A line a check: ok, warn, or FAIL with a remedy. Asks the daemon of this machine, or where none runs, the NVIDIA
    driver itself, as this user. Exit status 1 when a check fails.
    """
    from trackside_daemon.cli.commands import doctor_gpu

    failed = False
    status: dict[str, Any] | None = None
    for finding in _daemon():
        if isinstance(finding, dict):
            status = finding
        else:
            failed |= _say(finding)
    for look in (_push, _spool, _storage, doctor_gpu.look):
        for one in look(status):
            failed |= _say(one)
    raise typer.Exit(1 if failed else 0)


def _say(finding: Check) -> bool:
    """Prints it; whether it is a failure."""
    typer.echo(shown(f"{finding.level:<4} {finding.about}: {finding.text}"))
    return finding.level == "FAIL"


def _daemon() -> Iterator[Check | dict[str, Any]]:
    """What there is to say of daemons, and the status of the first that answers."""
    from trackside_daemon.cli.sources.daemon_lookup import noted
    from trackside_daemon.cli.sources.errors import LockedError, SourceError, TokenError
    from trackside_daemon.cli.sources.source import ApiSource

    answered = seen = False
    for note in noted():
        seen = True
        if note.problem:
            yield _unreadable(note)
            continue
        try:
            status = ApiSource(note.address, note.token).status()
        except TokenError:
            secret = note.file.with_suffix(".token")
            yield Check("FAIL", "daemon", f"{note.address} does not take the token in {secret}; restart that daemon")
            continue
        except LockedError as error:
            yield Check("FAIL", "daemon", str(error))
            continue
        except SourceError as error:
            left = f"a daemon that was killed has left {note.file}; start one with: trackside daemon"
            refused = "refused" in str(error)
            yield Check("warn", "daemon", left) if refused else Check("FAIL", "daemon", f"{error}; restart it")
            continue
        if not answered:
            yield from _about(note.address, status)
            yield from _certificate(note.address)
            yield status
        answered = True
    if not seen:
        yield Check("warn", "daemon", "none of this user or the system answers; start one with: trackside daemon")


def _unreadable(note: Note) -> Check:
    """Without address and token no command reaches the daemon; only of another user's is that as it should be."""
    if note.owner == os.getuid():
        return Check("FAIL", "daemon", f"{note.problem}; restart that daemon")
    return Check("warn", "daemon", f"{note.problem}; to ask that daemon, run this as {_user(note.owner)}")


def _about(address: str, status: dict[str, Any]) -> Iterator[Check]:
    version = status.get("version", "")
    if version != __version__:
        other = f"trackside {version}" if version else "of another version"
        yield Check("warn", "daemon", f"{address} is {other}, and this {__version__}; restart the daemon")
        return
    yield Check("ok", "daemon", f"trackside {version} serves {address}")
    metrics = status.get("metrics") or {}
    for name, how in status.get("collectors", {}).items():
        if how["state"] in {"fails", "hangs", "slow"} and name not in {"gpu", "nvml"}:
            yield Check("warn", f"collector {name}", f"{how['state']}: {how['why']}")
    if any(metrics.get("trackside_pipeline_failures_total", {}).values()):
        yield Check("warn", "pipeline", "samples were lost inside the daemon; its log says why")


def _certificate(address: str) -> Iterator[Check]:
    """Whether the daemon's certificate of the web configuration is soon over."""
    from trackside_daemon.cli.sources import credentials

    try:
        end = credentials.expires(address, credentials.given(), PROBE_SECONDS)
    except OSError as error:
        yield Check("warn", "certificate", f"{address}: {str(error).lower()}")
        return
    if end is None:
        return
    days = (end - time.time()) / 86400
    if days < SOON_DAYS:
        yield Check("warn", "certificate", f"that of {address} ends in {days:.0f} days; put a new one in its place")
    else:
        yield Check("ok", "certificate", f"that of {address} is valid for {days:.0f} days")


def _push(status: dict[str, Any] | None) -> Iterator[Check]:
    """Whether a training of this user finds the daemon."""
    found, failures = discovery.find(None, os.environ)
    if found is not None:
        yield Check("ok", "push", f"trainings of {_user(os.getuid())} push to {found}")
        return
    where = ", ".join(failures)
    named = discovery.named(None, os.environ)
    if status is None and named and not discovery.advice(named, failures):
        text = f"trainings find no daemon at {where}, and spool; mend that, or set TRACKSIDE_ENDPOINT to another"
        yield Check("FAIL", "push", text)
        return
    if status is None:
        yield Check("warn", "push", f"trainings find no daemon, and spool: looked at {where}")
        return
    endpoints = status.get("push_endpoints") or ["its --push.endpoint"]
    yield Check(
        "FAIL",
        "push",
        f"trainings of {_user(os.getuid())} do not find the daemon at {where}; set TRACKSIDE_ENDPOINT={endpoints[0]}",
    )


def _spool(_status: dict[str, Any] | None) -> Iterator[Check]:
    """Whether trainings can keep what no daemon takes, and whether anything waits."""
    try:
        places = list(spool_directories(os.environ, os.getuid()))
    except LookupError as error:
        yield Check("FAIL", "spool", f"{error}; set TRACKSIDE_SPOOL to a directory")
        return
    mend = "or set TRACKSIDE_SPOOL to another directory"
    try:
        room = _room(places[0])
    except OSError as error:
        yield Check("FAIL", "spool", f"{_why(error)}; make it writable, {mend}")
        return
    if room.closed:
        yield Check("FAIL", "spool", f"{room.closed}; make it writable, {mend}")
        return
    if room.free < SPOOL_BYTES:
        level: Level = "FAIL" if room.free < SEGMENT_BYTES else "warn"
        yield Check(level, "spool", f"{places[0]} has {room.free / 1e6:.0f} MB left; make room, {mend}")
        return
    waiting = len({file.name.partition(".")[0] for place in places for file in place.glob("*.spool")})
    if waiting:
        sessions = "1 session waits" if waiting == 1 else f"{waiting} sessions wait"
        yield Check("warn", "spool", f"{places[0]}: {sessions} for a daemon; start one, or: trackside spool send")
    else:
        yield Check("ok", "spool", f"{places[0]}, where nothing waits")


def _storage(status: dict[str, Any] | None) -> Iterator[Check]:
    """Whether the history can be written."""
    from trackside_daemon.history import directory as place

    stored = str((status or {}).get("storage_path") or "")
    another = f"name another directory with {place.OPTION}=DIR"
    try:
        directory = Path(stored) if stored else _own_history()
        room = _room(directory)
    except place.HistoryError as error:
        yield Check("FAIL", "storage", str(error))
        return
    except OSError as error:
        hidden = Check("warn", "storage", f"{_why(error)}; to look there, run this as the daemon's user")
        yield hidden if stored else Check("FAIL", "storage", f"{_why(error)}; {another}")
        return
    if room.closed and not stored:
        yield Check("FAIL", "storage", f"{room.closed}; {another}")
    elif room.free < LEAST_BYTES:
        few = f"{directory} has {room.free / 1e6:.0f} MB left, too few to write"
        yield Check("FAIL", "storage", f"{few}; make room, or {another}")
    elif kind := place.network_file_system(room.place):
        yield Check("warn", "storage", f"{directory} is on {kind}; a local {place.OPTION}=DIR is faster and safer")
    elif room.free < LEAST_FREE:
        yield Check("warn", "storage", f"{directory} has {room.free / 1e6:.0f} MB left; make room, or {another}")
    else:
        yield Check("ok", "storage", f"{directory}, {room.free / 1e9:.0f} GB free")


def _own_history() -> Path:
    """Where a daemon of this user would write; one that was named has to be there.

    Raises:
        HistoryError: It could not.
    """
    from trackside_daemon.cli.sources.daemon_lookup import VARIABLE
    from trackside_daemon.history import directory as place

    if named := os.environ.get(VARIABLE):
        return place.writable_directory(Path(named), place.OPTION)
    return place.default_directory(os.environ, os.getuid())


class _Room(NamedTuple):
    """What a directory has, or the nearest above it that is there, the *place*.

    Attributes:
        place: That one.
        free: Bytes.
        closed: Why this user may not write there; empty when it may.
    """

    place: Path
    free: int
    closed: str


def _room(directory: Path) -> _Room:
    """What there is for who would write there.

    Raises:
        OSError: This user cannot look there, or no directory can be made there.
    """
    for one in (directory, *directory.parents):
        try:
            mode = one.stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            continue
        if not stat.S_ISDIR(mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(one))
        open_ = os.access(one, os.W_OK | os.X_OK)
        return _Room(
            one, shutil.disk_usage(one).free, "" if open_ else f"{one}: {_user(os.getuid())} may not write there"
        )
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(directory))


def _why(error: OSError) -> str:
    return f"{error.filename}: {(error.strerror or str(error)).lower()}"


def _user(uid: int) -> str:
    return user_name(uid) or f"uid {uid}"
