"""The daemon beside the command of `trackside run`: one that is there already, else one that is started for it."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trackside.transport.discovery import deaf, find, named
from trackside_daemon.cli.daemon_lease import Users
from trackside_daemon.cli.sources.daemon_lookup import note
from trackside_daemon.cli.sources.errors import LockedError, SourceError, TokenError
from trackside_daemon.cli.sources.source import ApiSource
from trackside_daemon.history.directory import HistoryError, prepare
from trackside_daemon.ingest.endpoint import EndpointError, push_path
from trackside_daemon.linux.child_process import ChildProcess
from trackside_daemon.web.http.address import AddressError, listen
from trackside_daemon.web.settings import WebSection

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import BinaryIO

    from trackside_daemon.cli.signal_forwarding import Signals
    from trackside_daemon.service.config import Config

READY_SECONDS = 30.0
STARTING_SECONDS = 10.0
ENDING_SECONDS = 15.0
"""A daemon that ends is waited for so long."""

LOG = "daemon.log"
LOG_BYTES = 1024 * 1024
"""A longer log of earlier daemons is begun anew."""

ANY_PORT = "127.0.0.1:0"


class NoDaemonError(Exception):
    """The command runs without one; the message says why."""


class Beside(NamedTuple):
    """A daemon.

    Attributes:
        endpoint: Where it takes pushes.
        source: By which it is asked; None where it cannot be.
        line: Tells the user of it.
        child: It, where it was started here.
        history: Its directory, likewise.
    """

    endpoint: str
    source: ApiSource | None
    line: str
    child: ChildProcess | None = None
    history: Path | None = None

    @property
    def died(self) -> int | None:
        """How a daemon that was started here has ended; None while it lives."""
        return None if self.child is None else self.child.status

    @property
    def log(self) -> str:
        """Where its log is."""
        return "" if self.history is None else str(self.history / LOG)


class Place:
    """Where the daemon of this user and of these settings takes pushes. All commands that need it hold it together.

    Raises:
        NoDaemonError: Pushes go to another machine, or there is no such place.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        wanted = config.push.endpoint
        given = "" if wanted else named(None, os.environ)
        if given and not given.startswith("ipc://"):
            raise NoDaemonError(f"what is pushed goes to {given}, as $TRACKSIDE_ENDPOINT says")
        self._flags = [f"--push.endpoint={given}"] if given else []
        self._named = next((one for one in wanted if one.startswith("ipc://")), next(iter(wanted), given))
        try:
            self._socket = push_path(wanted or tuple(filter(None, [given])), os.environ, os.getuid())
            self._users = Users(self._socket.with_suffix(".users"))
            joined = self._users.join(ENDING_SECONDS)
        except (EndpointError, OSError) as error:
            raise NoDaemonError(str(error)) from None
        if not joined:
            raise NoDaemonError(f"{self._socket}: the daemon that was there does not end")

    def leave(self) -> None:
        """Let go; the daemon ends with the last who does."""
        with suppress(OSError):
            self._users.leave(ENDING_SECONDS)

    def daemon(self, flags: Sequence[str], signals: Signals) -> Beside:
        """The one that is there, or a new one. Of commands that begin at the same moment one starts it for all.

        Raises:
            NoDaemonError: There is none, and none can be started.
        """
        until = time.monotonic() + READY_SECONDS
        while not self._users.first() and not signals.asked and time.monotonic() < until:
            signals.next(0.05)
        try:
            return self.found(flags) or self.start(flags, signals)
        except NoDaemonError:
            if (found := self.found(flags)) is None:
                raise
            return found
        finally:
            self._users.next()

    def found(self, flags: Sequence[str]) -> Beside | None:
        """The daemon that is there, be it the system's; None where there is none."""
        endpoint = self._named
        if not endpoint:
            endpoint = find(None, os.environ)[0] or ""
        path = Path(endpoint.removeprefix("ipc://")) if endpoint.startswith("ipc://") else self._socket
        if not endpoint or deaf(path):
            return None
        source = _asked(path, STARTING_SECONDS)
        where = f"the daemon at {link(source)}" if source is not None else f"the daemon that takes pushes at {path}"
        unused = f"; it has settings of its own, so these do not count: {' '.join(flags)}" if flags else ""
        return Beside(endpoint, source, f"{where} is there already{unused}")

    def start(self, flags: Sequence[str], signals: Signals) -> Beside:
        """Start one, and wait until it serves.

        Raises:
            NoDaemonError: It does not.
        """
        try:
            history = prepare(Path(self._config.storage.path) if self._config.storage.path else None)
            listens, remark = self._address()
            with _log(history) as log:
                begun, before = log.tell(), _stamp(self._socket)
                lock = str(self._socket.with_suffix(".users"))
                child = ChildProcess(
                    "trackside_daemon.cli.shared_daemon_main",
                    lock,
                    *flags,
                    *self._flags,
                    *listens,
                    environ=_ALONE,
                    log=log,
                )
        except (HistoryError, AddressError, OSError) as error:
            raise NoDaemonError(str(error)) from None
        until = time.monotonic() + READY_SECONDS
        while child.status is None and time.monotonic() < until:
            source = _asked(self._socket) if _stamp(self._socket) != before else None
            if source is not None or signals.asked:
                return self._started(child, history, source, remark)
            signals.next(0.05)
        if child.status is not None:
            raise NoDaemonError(_complaint(history / LOG, begun) or f"it ended with status {child.status}")
        return self._started(child, history, None, f"; it has not answered within {READY_SECONDS:g} s")

    def _started(self, child: ChildProcess, history: Path, source: ApiSource | None, remark: str) -> Beside:
        endpoint = self._named or f"ipc://{self._socket}"
        return Beside(endpoint, source, f"{link(source)}{remark}", child, history)

    def _address(self) -> tuple[list[str], str]:
        """The flag by which it listens elsewhere than at the default port, and why; nothing when that is free."""
        wanted = self._config.web.listen_address
        try:
            listen(wanted).close()
        except AddressError as error:
            if wanted != WebSection().listen_address:
                raise
            return [f"--web.listen-address={ANY_PORT}"], f" ({str(error).partition(';')[0].partition(': ')[2]})"
        return [], ""


_ALONE = {"PYTHONSAFEPATH": "1"}
"""What lies in the training's directory is none of the daemon's modules."""


def link(source: ApiSource | None) -> str:
    """Where to look; with the token only on a terminal, since others may read what a job writes."""
    if source is None:
        return "its address is in its log"
    return f"{source.url}/#token={source.token}" if source.token and os.isatty(2) else source.url


def _asked(socket: Path, seconds: float = 0.0) -> ApiSource | None:
    """The daemon of a socket, if this user may ask it; one that is just starting is waited for so long.

    Where it serves is written down for users that it trusts; one that has done so for others is not waited for.
    """
    until = time.monotonic() + seconds
    while True:
        found = note(socket)
        try:
            if found is not None and not found.problem:
                source = ApiSource(found.address, found.token)
                source.status()
                return source
        except (LockedError, TokenError):
            return None
        except SourceError:  # what a daemon before it has left
            pass
        refused = _stamp(socket) != 0 if found is None else found.problem
        if refused or time.monotonic() >= until:
            return None
        time.sleep(0.05)


def _stamp(socket: Path) -> int:
    """Changes when a daemon writes down where it serves."""
    try:
        return socket.with_suffix(".address").stat().st_mtime_ns
    except OSError:
        return 0


def _log(history: Path) -> BinaryIO:
    """To be written on, for this user alone.

    Raises:
        OSError: It cannot be had.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    log = os.fdopen(os.open(history / LOG, flags, 0o600), "ab")
    if log.seek(0, os.SEEK_END) > LOG_BYTES:
        log.truncate(0)
        log.seek(0)
    return log


def _complaint(log: Path, begun: int) -> str:
    """The last that a daemon has said since then."""
    with suppress(OSError), log.open("rb") as file:
        file.seek(begun)
        lines = file.read(LOG_BYTES).decode(errors="replace").strip().splitlines()
        return lines[-1].removeprefix("trackside: ") if lines else ""
    return ""
