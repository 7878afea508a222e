"""Polling of a daemon in a thread, so that a slow response does not delay a key."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from trackside_daemon.terminal.frame import DaemonData
from trackside_daemon.terminal.view import View


class UnansweredError(Exception):
    """The daemon did not answer; the message states why, in one line."""


class PolledDaemon(Protocol):
    """The daemon's API; all methods raise `UnansweredError`."""

    def overview(self) -> dict[str, Any]:
        """Return the response of `/api/v1/overview`."""
        ...

    def series(self, parameters: Sequence[tuple[str, str]], /) -> list[dict[str, Any]]:
        """Return the response of `/api/v1/series`."""
        ...

    def machine(self, parameters: Sequence[tuple[str, str]], /) -> list[dict[str, Any]]:
        """Return the series of `/api/v1/machine`."""
        ...

    def processes(self) -> list[dict[str, Any]]:
        """Return the response of `/api/v1/processes`."""
        ...

    def end(self, pid: int, started: float) -> None:
        """Send SIGTERM to a process of a training that started at that Unix time."""
        ...

    def record(self, run: str) -> list[str]:
        """Record some steps of a run, by its id, and return the summary as lines of text, or why there is none."""
        ...


class PollResult(NamedTuple):
    """Result of one poll."""

    data: DaemonData | None  # responses; None after an error
    error: str  # error in one line; empty without one
    time: float  # Unix time of the poll, in seconds


def fetch(daemon: PolledDaemon, view: View) -> DaemonData:
    """Return an overview, with the series of a run, or the histories and processes of the machine.

    Raises:
        UnansweredError: The daemon did not answer, or its overview has another form.
    """
    overview = _checked(daemon.overview())
    if parameters := view.machine_query(overview):
        return DaemonData(overview, machine=_rows(daemon.machine(parameters)), processes=_rows(daemon.processes()))
    parameters = view.series_query(overview)
    series = _rows(daemon.series(parameters)) if parameters else []
    return DaemonData(overview, series, parameters[0][1] if parameters else "")


def _rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if isinstance(row, dict)]


def _checked(overview: dict[str, Any]) -> dict[str, Any]:
    for name in ("runs", "gpus", "alerts"):
        rows = overview.get(name)
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise UnansweredError(f"the daemon's overview has no {name}: the daemon is of another version")
    if not isinstance(overview.get("host", {}), dict):
        raise UnansweredError("the daemon's overview has no host: the daemon is of another version")
    return overview


class Poller:
    """Thread that polls a daemon.

    Args:
        daemon: Daemon to poll.
        view: Chooses what to fetch.
        on_result: Receives each result, in the thread.
        interval: Seconds between two polls.
    """

    def __init__(
        self,
        daemon: PolledDaemon,
        view: View,
        on_result: Callable[[PollResult], object],
        interval: float,
    ) -> None:
        self._daemon = daemon
        self._view = view
        self._on_result = on_result
        self._interval = interval
        self._wakeup = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="poller", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def poll_now(self) -> None:
        """Poll at once, because another run or window is selected."""
        self._wakeup.set()

    def stop(self) -> None:
        """Report no more results, without waiting for a poll in progress."""
        self._stopped = True
        self._wakeup.set()

    def _run(self) -> None:
        while not self._stopped:
            # Before the poll: a request that arrives during it starts another one.
            self._wakeup.clear()
            now = time.time()
            try:
                result = PollResult(fetch(self._daemon, self._view), "", now)
            except UnansweredError as error:
                result = PollResult(None, str(error), now)
            if not self._stopped:
                self._on_result(result)
            self._wakeup.wait(self._interval)
