"""The daemon of `trackside run`: one that is running already, else one that the command starts."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trackside.environment.discovery import find, named_endpoint, socket_failure
from trackside_daemon.cli.run.daemon_lease import DaemonLease
from trackside_daemon.cli.sources.api_source import ApiSource
from trackside_daemon.cli.sources.daemon_lookup import endpoint_of
from trackside_daemon.cli.sources.source import LockedError, SourceError, TokenError
from trackside_daemon.history.directory import HistoryError, prepare
from trackside_daemon.ingest.endpoint import EndpointError, push_path
from trackside_daemon.linux.child_process import ChildProcess
from trackside_daemon.web.http.address import AddressError, listen
from trackside_daemon.web.settings import WebSection

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import BinaryIO

    from trackside_daemon.cli.run.signal_forwarding import Signals
    from trackside_daemon.service.config import Config

READY_SECONDS = 30.0
STARTING_SECONDS = 10.0
ENDING_SECONDS = 15.0  # time limit for a daemon that is ending

LOG = "daemon.log"
LOG_BYTES = 1024 * 1024  # size above which the log of earlier daemons is truncated

ANY_PORT = "127.0.0.1:0"


class NoDaemonError(Exception):
    """The command runs without a daemon; the message is the reason."""


class CommandDaemon(NamedTuple):
    """A daemon that accepts the pushes of a command."""

    endpoint: str  # endpoint for pushes
    source: ApiSource | None  # API of the daemon; None if this user may not query it
    line: str  # message about the daemon for the user
    child: ChildProcess | None = None  # its process, if this command started it
    history: Path | None = None  # directory of its history, if this command started it

    @property
    def died(self) -> int | None:
        """The exit status of a daemon that this command started; None while it runs."""
        return None if self.child is None else self.child.status

    @property
    def log(self) -> str:
        """The path of the daemon's log; empty if this command did not start it."""
        return "" if self.history is None else str(self.history / LOG)


class SharedDaemon:
    """The daemon of a push socket, which all commands that use it keep running together.

    Args:
        config: The configuration, which determines the push socket.
        own: Flags only for a daemon that is started.

    Raises:
        NoDaemonError: Pushes go to another machine, or the socket cannot be created.
    """

    def __init__(self, config: Config, own: Sequence[str] = ()) -> None:
        self._config = config
        endpoints = config.push.endpoint
        inherited = "" if endpoints else named_endpoint(None, os.environ)
        if inherited and not inherited.startswith("ipc://"):
            raise NoDaemonError(f"$TRACKSIDE_ENDPOINT sends pushes to {inherited}")
        self._flags = [*own, *([f"--push.endpoint={inherited}"] if inherited else [])]
        local = (endpoint for endpoint in endpoints if endpoint.startswith("ipc://"))
        self._endpoint = next(local, next(iter(endpoints), inherited))
        try:
            self._socket = push_path(endpoints or tuple(filter(None, [inherited])), os.environ, os.getuid())
            self._lease = DaemonLease(self._socket.with_suffix(".users"))
            acquired = self._lease.acquire(ENDING_SECONDS)
        except (EndpointError, OSError) as error:
            raise NoDaemonError(str(error)) from None
        if not acquired:
            raise NoDaemonError(f"{self._socket}: the previous daemon does not end")

    def release(self) -> None:
        """Stop using the daemon, which ends with its last user."""
        with suppress(OSError):
            self._lease.release(ENDING_SECONDS)

    def find_or_start(self, flags: Sequence[str], signals: Signals) -> CommandDaemon:
        """Return the daemon that is running, or start one; of several new commands one starts it for all.

        Raises:
            NoDaemonError: No daemon is running, and none can be started.
        """
        until = time.monotonic() + READY_SECONDS
        while not self._lease.begin_start() and not signals.ending and time.monotonic() < until:
            signals.get(0.05)
        try:
            return self._find(flags) or self._start(flags, signals)
        except NoDaemonError:
            # Another daemon may have got the socket first, for example one that the system starts.
            if (running := self._find(flags)) is None:
                raise
            return running
        finally:
            self._lease.end_start()

    def _find(self, flags: Sequence[str]) -> CommandDaemon | None:
        """Return the daemon that is running, which may be the system's; None if there is none."""
        endpoint = self._endpoint or find(None, os.environ)[0] or ""
        path = Path(endpoint.removeprefix("ipc://")) if endpoint.startswith("ipc://") else self._socket
        if not endpoint or socket_failure(path):
            return None
        source = _query(path, STARTING_SECONDS)
        where = f"the daemon at {link(source)}" if source is not None else f"the daemon that accepts pushes at {path}"
        ignored = f"; it keeps its settings, so these have no effect: {' '.join(flags)}" if flags else ""
        return CommandDaemon(endpoint, source, f"using {where}, which is already running{ignored}")

    def _start(self, flags: Sequence[str], signals: Signals) -> CommandDaemon:
        """Start a daemon, and wait until it serves.

        Raises:
            NoDaemonError: It fails to start.
        """
        try:
            history = prepare(Path(self._config.storage.path) if self._config.storage.path else None)
            listens, remark = self._address()
            with _open_log(history) as log:
                begun = log.tell()
                before = _address_time(self._socket)
                child = ChildProcess(
                    "trackside_daemon.cli.run.daemon_lease",
                    str(self._socket.with_suffix(".users")),
                    *flags,
                    *self._flags,
                    *listens,
                    log=log,
                )
        except (HistoryError, AddressError, OSError) as error:
            raise NoDaemonError(str(error)) from None
        until = time.monotonic() + READY_SECONDS
        while child.status is None and time.monotonic() < until:
            # Until the file changes, the address in it is that of an earlier daemon.
            source = _query(self._socket) if _address_time(self._socket) != before else None
            if source is not None or signals.ending:
                return self._started(child, history, source, remark)
            signals.get(0.05)
        if child.status is not None:
            raise NoDaemonError(_last_line(history / LOG, begun) or f"it ended with status {child.status}")
        return self._started(child, history, None, f"; it has not answered within {READY_SECONDS:g} s")

    def _started(self, child: ChildProcess, history: Path, source: ApiSource | None, remark: str) -> CommandDaemon:
        endpoint = self._endpoint or f"ipc://{self._socket}"
        return CommandDaemon(endpoint, source, f"{link(source)}{remark}", child, history)

    def _address(self) -> tuple[list[str], str]:
        """Return the flag for another port if the default one is taken, and a remark about it; else nothing."""
        address = self._config.web.listen_address
        try:
            listen(address).close()
        except AddressError as error:
            if address != WebSection().listen_address:
                raise
            return [f"--web.listen-address={ANY_PORT}"], f" ({str(error).partition(';')[0].partition(': ')[2]})"
        return [], ""


def link(source: ApiSource | None) -> str:
    """Return the dashboard's address; with the token only on a terminal, since others may read a job's output."""
    if source is None:
        return "its address is in its log"
    return f"{source.url}/#token={source.token}" if source.token and os.isatty(2) else source.url


def _query(socket: Path, timeout: float = 0.0) -> ApiSource | None:
    """Return the daemon of a push socket if this user may query it, and wait *timeout* seconds for one that is starting.

    A daemon writes its address for users that it trusts. If it has done so for others, the wait ends at once.
    """
    until = time.monotonic() + timeout
    while True:
        endpoint = endpoint_of(socket)
        try:
            if endpoint is not None and not endpoint.problem:
                source = ApiSource(endpoint.address, endpoint.token)
                source.status()
                return source
        except (LockedError, TokenError):
            return None
        except SourceError:  # left by a previous daemon
            pass
        refused = _address_time(socket) != 0 if endpoint is None else endpoint.problem
        if refused or time.monotonic() >= until:
            return None
        time.sleep(0.05)


def _address_time(socket: Path) -> int:
    """Return when a daemon last wrote its address, in nanoseconds; 0 if none did."""
    try:
        return socket.with_suffix(".address").stat().st_mtime_ns
    except OSError:
        return 0


def _open_log(history: Path) -> BinaryIO:
    """Open the log for appending, for this user alone.

    Raises:
        OSError: It cannot be opened.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    log = os.fdopen(os.open(history / LOG, flags, 0o600), "ab")
    if log.seek(0, os.SEEK_END) > LOG_BYTES:
        log.truncate(0)
        log.seek(0)
    return log


def _last_line(log: Path, begun: int) -> str:
    """Return the last line that a daemon has logged since then; empty for none."""
    with suppress(OSError), log.open("rb") as file:
        file.seek(begun)
        lines = file.read(LOG_BYTES).decode(errors="replace").strip().splitlines()
        return lines[-1].removeprefix("trackside: ") if lines else ""
    return ""
