"""The command doctor: says of each thing that trackside needs whether it is there, and if not, how to mend it."""

from __future__ import annotations

import os
import pwd
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import typer

from trackside import discovery
from trackside.place import spool_directories
from trackside_daemon import __version__
from trackside_daemon.commands.table import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

LEAST_FREE = 1024**3
"""Bytes; with less on its disk the history will soon be full."""


class Finding(NamedTuple):
    """One line: *text* has the remedy, unless all is well."""

    level: Literal["ok", "warn", "FAIL"]
    about: str
    text: str


def doctor() -> None:
    """Look at everything that trackside needs, and say what is wrong and how to mend it.

    A line a check: ok, warn, or FAIL with a remedy. Asks the daemon of this machine, or where none runs, the NVIDIA
    driver itself, as this user. Exit status 1 when a check fails.
    """
    from trackside_daemon.commands import doctor_gpu

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


def _say(finding: Finding) -> bool:
    """Prints it; whether it is a failure."""
    typer.echo(shown(f"{finding.level:<4} {finding.about}: {finding.text}"))
    return finding.level == "FAIL"


def _daemon() -> Iterator[Finding | dict[str, Any]]:
    """What there is to say of daemons, and the status of the first that answers."""
    from trackside_daemon.commands.find import noted
    from trackside_daemon.commands.source import ApiSource, SourceError

    answered = False
    for note in noted():
        if note.problem:
            mine = note.owner == os.getuid()
            mend = "restart that daemon" if mine else f"to ask that daemon, run this as {_user(note.owner)}"
            yield Finding("warn", "daemon", f"{note.problem}; {mend}")
            continue
        try:
            status = ApiSource(note.address, note.token).status()
        except SourceError as error:
            left = f"a daemon that was killed has left {note.file}; start one with: trackside daemon"
            refused = "refused" in str(error)
            yield Finding("warn", "daemon", left) if refused else Finding("FAIL", "daemon", f"{error}; restart it")
            continue
        if not answered:
            yield from _about(note.address, status)
            yield status
        answered = True
    if not answered:
        yield Finding("warn", "daemon", "none of this user or the system answers; start one with: trackside daemon")


def _about(address: str, status: dict[str, Any]) -> Iterator[Finding]:
    version = status.get("version", "")
    if version == __version__:
        yield Finding("ok", "daemon", f"trackside {version} serves {address}")
    else:
        yield Finding("warn", "daemon", f"{address} is trackside {version}, and this {__version__}; restart the daemon")
    metrics = status.get("metrics", {})
    failing = [
        name
        for name, success in metrics.get("trackside_collector_success", {}).items()
        if not success and name not in {"gpu", "nvml"}
    ]
    if failing:
        yield Finding("warn", "collectors", f"{', '.join(sorted(failing))} give nothing; the daemon's log says why")
    if any(metrics.get("trackside_pipeline_failures_total", {}).values()):
        yield Finding("warn", "pipeline", "samples were lost inside the daemon; its log says why")


def _push(status: dict[str, Any] | None) -> Iterator[Finding]:
    """Whether a training of this user finds the daemon."""
    found, failures = discovery.find(None, os.environ)
    if found is not None:
        yield Finding("ok", "push", f"trainings of {_user(os.getuid())} push to {found}")
        return
    where = ", ".join(failures)
    if status is None:
        yield Finding("warn", "push", f"trainings find no daemon, and spool: looked at {where}")
        return
    endpoints = status.get("push_endpoints") or ["its --push.endpoint"]
    yield Finding(
        "FAIL",
        "push",
        f"trainings of {_user(os.getuid())} do not find the daemon at {where}; set TRACKSIDE_ENDPOINT={endpoints[0]}",
    )


def _spool(_status: dict[str, Any] | None) -> Iterator[Finding]:
    """Whether trainings can keep what no daemon takes, and whether anything waits."""
    try:
        places = list(spool_directories(os.environ, os.getuid()))
    except LookupError as error:
        yield Finding("FAIL", "spool", f"{error}; set TRACKSIDE_SPOOL to a directory")
        return
    problem = _unwritable(places[0])
    if problem:
        yield Finding("FAIL", "spool", f"{problem}; make it writable, or set TRACKSIDE_SPOOL to another directory")
        return
    waiting = len({file.name.partition(".")[0] for place in places for file in place.glob("*.spool")})
    if waiting:
        sessions = "1 session waits" if waiting == 1 else f"{waiting} sessions wait"
        yield Finding("warn", "spool", f"{places[0]}: {sessions} for a daemon; start one, or: trackside spool send")
    else:
        yield Finding("ok", "spool", f"{places[0]}, where nothing waits")


def _storage(status: dict[str, Any] | None) -> Iterator[Finding]:
    """Whether the history can be written."""
    from trackside_daemon.commands.find import VARIABLE
    from trackside_daemon.history import place

    try:
        named = os.environ.get(VARIABLE, "")
        directory = Path(
            status["storage_path"] if status else named or place.default_directory(os.environ, os.getuid())
        )
        if status is None and (named or directory.exists()):
            place.writable_directory(directory, place.OPTION)
    except place.HistoryError as error:
        yield Finding("FAIL", "storage", str(error))
        return
    if status is None and (problem := _unwritable(directory)):
        yield Finding("FAIL", "storage", f"{problem}; name another directory with {place.OPTION}=DIR")
        return
    there = next(one for one in (directory, *directory.parents) if one.exists())
    free = shutil.disk_usage(there).free
    if kind := place.network_file_system(there):
        yield Finding("warn", "storage", f"{directory} is on {kind}; a local {place.OPTION}=DIR is faster and safer")
    elif free < LEAST_FREE:
        yield Finding(
            "warn", "storage", f"{directory} has {free / 1e6:.0f} MB left; make room, or name {place.OPTION}=DIR"
        )
    else:
        yield Finding("ok", "storage", f"{directory}, {free / 1e9:.0f} GB free")


def _unwritable(directory: Path) -> str:
    """Why this user cannot write there, or make it; empty when it can."""
    for one in (directory, *directory.parents):
        try:
            one.stat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            return f"{one}: {(error.strerror or str(error)).lower()}"
        if not one.is_dir():
            return f"{one}: not a directory"
        return "" if os.access(one, os.W_OK | os.X_OK) else f"{one}: {_user(os.getuid())} may not write there"
    return f"{directory}: no such directory"


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
