"""The command doctor: checks all that trackside needs, and reports how to fix what is missing."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from trackside.captures.kineto import TESTED, is_tested, serves_this_user, socket_directory
from trackside.environment import discovery
from trackside.environment.paths import spool_directories
from trackside.os_errors import file_error_text
from trackside.transport.spool import SEGMENT_BYTES, SPOOL_BYTES
from trackside_daemon import __version__
from trackside_daemon.captures.kineto.environment import torch_version
from trackside_daemon.captures.kineto.socket_file import DirectoryError, require_usable
from trackside_daemon.cli.commands.doctor_gpu import Check, Level
from trackside_daemon.linux.user_names import user_name
from trackside_daemon.model.families import daemon
from trackside_daemon.model.setting_types import LEAST_BYTES
from trackside_daemon.model.text import byte_size, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trackside_daemon.cli.sources.daemon_lookup import DaemonAddress

SOON_DAYS = 30
PROBE_SECONDS = 5.0
LEAST_FREE = 1024**3  # free bytes below which the disk of the history will soon be full

PROGRAMS = ("python", "python3")
WITHOUT = "captures need the client in the training"


def doctor() -> None:
    """Check everything that trackside needs, and report how to fix what is wrong.

    Each check prints a line: ok, warn, or FAIL with a remedy. Without a daemon, the command queries the NVIDIA
    driver, as this user. The exit status is 1 if a check fails, also if no daemon runs.
    """
    from trackside_daemon.cli.commands import doctor_gpu

    failed = False
    status: dict[str, Any] | None = None
    for result in _daemon():
        if isinstance(result, dict):
            status = result
        else:
            failed |= _print(result)
    for check in (_push, _spool, _storage, _notifications, _profiles, doctor_gpu.check):
        for result in check(status):
            failed |= _print(result)
    raise typer.Exit(1 if failed else 0)


def _print(check: Check) -> bool:
    """Print a result, and return whether it is a failure."""
    typer.echo(shown(f"{check.level:<4} {check.about}: {check.text}"))
    return check.level == "FAIL"


def _daemon() -> Iterator[Check | dict[str, Any]]:
    """Yield the checks of daemons, and the status of the first one that answers."""
    from trackside_daemon.cli.sources.api_source import ApiSource
    from trackside_daemon.cli.sources.daemon_lookup import local_endpoints
    from trackside_daemon.cli.sources.source import LockedError, SourceError, TokenError

    answered = seen = False
    for endpoint in local_endpoints():
        seen = True
        if endpoint.problem:
            yield _unreadable(endpoint)
            continue
        try:
            status = ApiSource(endpoint.address, endpoint.token).status()
        except TokenError:
            secret = endpoint.file.with_suffix(".token")
            yield Check("FAIL", "daemon", f"{endpoint.address} rejects the token in {secret}; restart that daemon")
            continue
        except LockedError as error:
            yield Check("FAIL", "daemon", str(error))
            continue
        except SourceError as error:
            left = f"{endpoint.file} is from a daemon that was killed; start one with: trackside daemon"
            yield Check("FAIL", "daemon", left if "refused" in str(error) else f"{error}; restart it")
            continue
        if not answered:
            yield from _about(endpoint.address, status)
            yield from _certificate(endpoint.address)
            yield status
        answered = True
    if not seen:
        yield Check(
            "FAIL", "daemon", "no daemon of this user or of the system answers; start one with: trackside daemon"
        )


def _unreadable(endpoint: DaemonAddress) -> Check:
    """Return a failure for files of this user or of a stranger, and a warning for those of root, which is normal."""
    if endpoint.remedy:
        return Check("FAIL", "daemon", f"{endpoint.problem}; {endpoint.remedy}")
    if endpoint.owner == os.getuid():
        return Check("FAIL", "daemon", f"{endpoint.problem}; restart that daemon")
    return Check("warn", "daemon", f"{endpoint.problem}; to check that daemon, run this as {_user(endpoint.owner)}")


def _about(address: str, status: dict[str, Any]) -> Iterator[Check]:
    version = status.get("version", "")
    if version != __version__:
        other = f"trackside {version}" if version else "of another version"
        yield Check("warn", "daemon", f"{address} is {other}, but this command is {__version__}; restart the daemon")
        return
    yield Check("ok", "daemon", f"trackside {version} serves {address}")
    metrics = status.get("metrics") or {}
    for name, how in status.get("collectors", {}).items():
        if how["state"] in {"fails", "hangs", "slow", "partial"} and name not in {"gpu", "nvml"}:
            yield Check("warn", f"collector {name}", f"{how['state']}: {how['why']}")
    if any(metrics.get(daemon.PIPELINE_FAILURES.name, {}).values()):
        yield Check("warn", "pipeline", "batches failed inside the daemon; see its log")


def _certificate(address: str) -> Iterator[Check]:
    """Check when the certificate of the daemon's web configuration expires."""
    from trackside_daemon.cli.sources import credentials

    try:
        end = credentials.certificate_expiry(address, credentials.load(), PROBE_SECONDS)
    except OSError as error:
        yield Check("warn", "certificate", f"{address}: {str(error).lower()}")
        return
    if end is None:
        return
    days = (end - time.time()) / 86400
    if days < SOON_DAYS:
        yield Check("warn", "certificate", f"that of {address} expires in {days:.0f} days; replace it")
    else:
        yield Check("ok", "certificate", f"that of {address} is valid for {days:.0f} days")


def _push(status: dict[str, Any] | None) -> Iterator[Check]:
    """Check whether a training job of this user finds the daemon."""
    found, failures = discovery.find(None, os.environ)
    if found is not None:
        reason = discovery.origin(found, None, os.environ)
        yield Check("ok", "push", f"training jobs of {_user(os.getuid())} push to {found} ({reason})")
        return
    where = ", ".join(failures)
    named = discovery.named_endpoint(None, os.environ)
    if status is None and named and not discovery.advice(named, failures):
        text = f"training jobs find no daemon at {where}, and spool; fix that, or set TRACKSIDE_ENDPOINT to another"
        yield Check("FAIL", "push", text)
        return
    if status is None:
        yield Check("warn", "push", f"training jobs find no daemon at {where}, and spool")
        return
    endpoints = status.get("push_endpoints") or ["its --push.endpoint"]
    yield Check(
        "FAIL",
        "push",
        f"training jobs of {_user(os.getuid())} do not find the daemon at {where}; set TRACKSIDE_ENDPOINT={endpoints[0]}",
    )


def _spool(_status: dict[str, Any] | None) -> Iterator[Check]:
    """Check whether training jobs can spool, and whether spools wait for a daemon."""
    try:
        places = list(spool_directories(os.environ, os.getuid()))
    except LookupError as error:
        yield Check("FAIL", "spool", f"{error}; set TRACKSIDE_SPOOL to a directory")
        return
    or_another = "or set TRACKSIDE_SPOOL to another directory"
    try:
        room = _room(places[0])
    except OSError as error:
        yield Check("FAIL", "spool", f"{file_error_text(error)}; make it writable, {or_another}")
        return
    if room.closed:
        yield Check("FAIL", "spool", f"{room.closed}; make it writable, {or_another}")
        return
    if room.free < SPOOL_BYTES:
        level: Level = "FAIL" if room.free < SEGMENT_BYTES else "warn"
        yield Check(level, "spool", f"{places[0]} has {byte_size(room.free)} left; free some space, {or_another}")
        return
    waiting = len({file.name.partition(".")[0] for place in places for file in place.glob("*.spool")})
    if waiting:
        sessions = "1 session waits" if waiting == 1 else f"{waiting} sessions wait"
        yield Check("warn", "spool", f"{places[0]}: {sessions} for a daemon; start one, or: trackside spool send")
    else:
        yield Check("ok", "spool", f"{places[0]}, no session waits")


def _notifications(status: dict[str, Any] | None) -> Iterator[Check]:
    """Check whether anybody is notified of an alert."""
    if status is None or "notifications" not in status:
        return
    receivers = sorted(set(status["notifications"]) - {"log"})
    if receivers:
        yield Check("ok", "notifications", f"go to {', '.join(receivers)}; trackside test-alert tries them")
    else:
        yield Check(
            "warn",
            "notifications",
            "go nowhere but to the daemon's log; set alerts.sinks, unless Prometheus sends them",
        )


def _storage(status: dict[str, Any] | None) -> Iterator[Check]:
    """Check whether the history can be written."""
    from trackside_daemon.history import directory as place

    if problem := (status or {}).get("storage_problem"):
        yield Check("FAIL", "storage", f"the daemon writes no history at the moment: {problem}")
        return
    stored = str((status or {}).get("storage_path") or "")
    another = f"give another directory with {place.OPTION}=DIR"
    try:
        directory = Path(stored) if stored else _own_history()
        room = _room(directory)
    except place.HistoryError as error:
        yield Check("FAIL", "storage", str(error))
        return
    except OSError as error:
        hidden = Check("warn", "storage", f"{file_error_text(error)}; to check it, run this as the daemon's user")
        yield hidden if stored else Check("FAIL", "storage", f"{file_error_text(error)}; {another}")
        return
    if room.closed and not stored:
        yield Check("FAIL", "storage", f"{room.closed}; {another}")
    elif room.free < LEAST_BYTES:
        few = f"{directory} has {byte_size(room.free)} left, too little to write"
        yield Check("FAIL", "storage", f"{few}; free some space, or {another}")
    elif kind := place.network_file_system(room.place):
        yield Check("warn", "storage", f"{directory} is on {kind}; a local {place.OPTION}=DIR is faster and safer")
    elif room.free < LEAST_FREE:
        yield Check("warn", "storage", f"{directory} has {byte_size(room.free)} left; free some space, or {another}")
    else:
        yield Check("ok", "storage", f"{directory}, {byte_size(room.free)} free")


def _own_history() -> Path:
    """Return the directory where a daemon of this user would write.

    Raises:
        HistoryError: A daemon could not write there.
    """
    from trackside_daemon.cli.sources.daemon_lookup import VARIABLE
    from trackside_daemon.history import directory as place

    if configured := os.environ.get(VARIABLE):
        place.check_named_directory(Path(configured), place.OPTION)
        return Path(configured)
    return place.default_directory(os.environ, os.getuid())


class _Room(NamedTuple):
    """The space of a directory."""

    place: Path  # the directory, or its nearest parent that exists
    free: int  # free bytes
    closed: str  # why this user may not write there; empty if it may


def _room(directory: Path) -> _Room:
    """Return the space of a directory, which need not exist.

    Raises:
        OSError: This user may not read it, or no directory can be created there.
    """
    for existing in (directory, *directory.parents):
        try:
            mode = existing.stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            continue
        if not stat.S_ISDIR(mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(existing))
        # Both: without X_OK, no file in the directory can be opened.
        writable = os.access(existing, os.W_OK | os.X_OK)
        closed = "" if writable else f"{existing}: {_user(os.getuid())} may not write there"
        return _Room(existing, shutil.disk_usage(existing).free, closed)
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(directory))


def _user(uid: int) -> str:
    return user_name(uid) or f"uid {uid}"


def _profiles(status: Mapping[str, Any] | None) -> Iterator[Check]:
    """Check whether `trackside run` can have PyTorch itself record profiles, without code in the training."""
    version = next(filter(None, map(torch_version, PROGRAMS)), "")
    if not version:
        yield Check("ok", "profiles", "the Python in $PATH has no PyTorch")
        return
    if not is_tested(version):
        versions = ", ".join(TESTED)
        text = f"PyTorch {version} in $PATH is left alone, because {versions} are the tested versions; {WITHOUT}"
        yield Check("warn", "profiles", text)
        return
    found = discovery.find(None, os.environ)[0] or ""
    if status is None or not found.startswith("ipc://"):
        yield Check("ok", "profiles", f"PyTorch {version} in $PATH is a tested version; `trackside run` serves it")
        return
    place = socket_directory(Path(found.removeprefix("ipc://")))
    try:
        require_usable(place)
    except DirectoryError as error:
        yield Check("warn", "profiles", f"{error}; until then, {WITHOUT}")
        return
    if serves_this_user(place):
        yield Check("ok", "profiles", f"PyTorch {version} in $PATH is a tested version, and the daemon serves {place}")
    else:
        text = f"{place}: the daemon of another user, or one with capture.kineto off, serves no profiles; {WITHOUT}"
        yield Check("warn", "profiles", text)
