"""The recorder that asks PyTorch itself: the training needs no code for it, and no thread that holds Python's lock."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from trackside_daemon.captures.kineto.environment import TESTED, will_ask
from trackside_daemon.captures.kineto.pollers import DELAY_SECONDS, POLL_SECONDS
from trackside_daemon.captures.kineto.protocol import Window, configuration
from trackside_daemon.captures.kineto.recording import BUSY, Recording

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from trackside_daemon.captures.kineto.pollers import Pollers
    from trackside_daemon.model.capture import Capture
    from trackside_daemon.model.rank_process import RankProcess

CHECK_SECONDS = 0.05  # how often files are looked up
LOOP_SECONDS = 1.0  # libkineto's loop: a configuration has to arrive that much before its start time
MARGIN_SECONDS = 0.5  # how late a process may ask when several start together
WRITE_SECONDS = 30.0  # time limit for the file, after the end of the recording

# A window has to contain all steps, which take longer while they are recorded. The summary is cut to the steps asked for.
SLOWNESS = 1.5
LONGEST_SECONDS = 120.0  # maximum duration of a window
STEP_SECONDS = 0.2  # duration of a step in a run whose speed is unknown, for windows
SLOW_STEP_SECONDS = 5.0  # likewise, for the time limit

UNREACHED = (
    "its PyTorch does not ask for profiles: start it with `trackside run -- python …`, and one of the tested versions of"
    f" PyTorch ({', '.join(TESTED)})"
)


class KinetoRecorder:
    """Records ranks of this machine whose PyTorch asks for configurations.

    One rank records as many optimizer steps as asked for. Several record for a time that contains as many, so that they start
    within milliseconds of each other.

    Args:
        directory: The directory of the socket.
        pollers: The processes that ask.
        processes: Returns the ranks of this machine.
        step_seconds: Returns the duration of a run's steps, by the run's id and attempt; None if it is unknown.
    """

    def __init__(
        self,
        directory: Path,
        pollers: Pollers,
        processes: Callable[[], Sequence[RankProcess]],
        step_seconds: Callable[[str, int], float | None],
    ) -> None:
        self._directory = directory
        self._pollers = pollers
        self._processes = processes
        self._step_seconds = step_seconds

    def refuse(self, capture: Capture, ranks: Sequence[int]) -> dict[int, str]:
        """Return the ranks that it cannot record, each with the reason; see `Recorder`."""
        if capture.kind != "profile":
            return dict.fromkeys(ranks, "PyTorch's profiler records profiles alone")
        pids = self._pids(capture.run)
        reasons = {rank: self._reason(pids.get(rank, 0)) for rank in ranks}
        return {rank: reason for rank, reason in reasons.items() if reason}

    def record(
        self, capture: Capture, ranks: Sequence[int], directory: Path, cancelled: threading.Event
    ) -> dict[int, Path | str]:
        """Record ranks; see `Recorder`."""
        pids = self._pids(capture.run)
        window = self._window(capture, [pids.get(rank, 0) for rank in ranks])
        seconds = self._seconds(capture, window) + WRITE_SECONDS
        recordings = {rank: Recording(rank, pids.get(rank, 0), directory, self._pollers, seconds) for rank in ranks}
        # libkineto may be allowed to write below this directory alone, and no path of the store can confuse its configuration.
        link = self._directory / capture.id
        try:
            link.symlink_to(directory)
            for rank, recording in recordings.items():
                text = configuration(f"{link}/trace_{rank}.json", window, capture.options)
                recording.offer(text, self._patience(recording.pid, window))
            return self._wait(capture.run, recordings, cancelled)
        except OSError as error:
            return dict.fromkeys(ranks, f"{error.filename}: {(error.strerror or str(error)).lower()}")
        finally:
            for recording in recordings.values():
                self._pollers.withdraw(recording.pid)
            link.unlink(missing_ok=True)

    def _wait(self, run: str, recordings: dict[int, Recording], cancelled: threading.Event) -> dict[int, Path | str]:
        """Return the outcomes of all recordings."""
        outcomes: dict[int, Path | str] = {}
        while recordings.keys() - outcomes:
            alive = self._pids(run).values()
            for rank in recordings.keys() - outcomes:
                outcome = recordings[rank].outcome(alive=recordings[rank].pid in alive)
                if outcome is not None:
                    outcomes[rank] = outcome
            if cancelled.wait(CHECK_SECONDS):
                return dict.fromkeys(recordings, "cancelled") | outcomes
        return outcomes

    def _pids(self, run: str) -> dict[int, int]:
        """Return the processes of a run on this machine, by rank."""
        return {process.rank: process.pid for process in self._processes() if process.run_id == run and process.pid > 0}

    def _reason(self, pid: int) -> str:
        """Return why a process cannot be recorded; empty if it can."""
        poller = self._pollers.get(pid)
        if poller is None:
            return "" if will_ask(pid, self._directory) else UNREACHED
        return UNREACHED if poller.silent else "" if poller.accepts else BUSY

    def _asks_in(self, pid: int) -> float:
        """Return in how many seconds a process is due to ask."""
        poller = self._pollers.get(pid)
        return POLL_SECONDS if poller is None else max(0.0, poller.at + poller.interval - time.monotonic())

    def _window(self, capture: Capture, pids: Sequence[int]) -> Window:
        """Return when to record: one process when it asks, several at a moment by which all have asked."""
        options = capture.options
        if len(pids) == 1:
            return Window(options.steps, options.seconds or 0.0)
        seconds = options.seconds or 0.0
        if options.steps is not None:
            seconds = (
                (options.steps + 1) * (self._step_seconds(capture.run, capture.attempt) or STEP_SECONDS) * SLOWNESS
            )
        delay = max(map(self._asks_in, pids)) + MARGIN_SECONDS + LOOP_SECONDS
        return Window(None, min(seconds, LONGEST_SECONDS), time.time() + delay)

    def _seconds(self, capture: Capture, window: Window) -> float:
        """Return how long a recording takes at most, from when a process has asked."""
        if window.steps is not None:
            step = self._step_seconds(capture.run, capture.attempt) or SLOW_STEP_SECONDS
            return window.steps * step * 2 * SLOWNESS
        return window.seconds + max(0.0, window.start - time.time()) + LOOP_SECONDS

    def _patience(self, pid: int, window: Window) -> float:
        """Return how long a process may take to ask; libkineto does not record if its start time has come."""
        if window.start:
            return window.start - LOOP_SECONDS - time.time()
        return self._asks_in(pid) + DELAY_SECONDS
