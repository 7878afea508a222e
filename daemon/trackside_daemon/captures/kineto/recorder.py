"""The recorder that asks PyTorch itself: the training needs no code for it, and no thread that holds Python's lock."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

from trackside.captures.kineto import TESTED
from trackside_daemon.captures.kinds.kind import Recorder
from trackside_daemon.captures.kineto.environment import will_ask
from trackside_daemon.captures.kineto.pollers import DELAY_SECONDS
from trackside_daemon.captures.kineto.protocol import configuration
from trackside_daemon.captures.kineto.recording import BUSY, LATE, Recording
from trackside_daemon.captures.kineto.windows import LOOP_SECONDS

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from trackside_daemon.captures.kineto.pollers import Pollers
    from trackside_daemon.captures.kineto.protocol import Window
    from trackside_daemon.captures.kineto.windows import Windows
    from trackside_daemon.model.capture import Capture
    from trackside_daemon.model.rank_process import RankProcess

CHECK_SECONDS = 0.05  # how often files are checked
TRIES = 3  # of recordings that start at a moment: on a busy machine, a process may get the request later
FULL_BYTES = 64 * 1024  # with less room, no trace will be complete
WRITE_SECONDS = 30.0  # time limit for the file, after the end of the recording

UNREACHED = (
    "its PyTorch does not ask for profiles: start it with `trackside run -- python …`, and one of the tested versions of"
    f" PyTorch ({', '.join(TESTED)})"
)


class KinetoRecorder(Recorder):
    """Records ranks of this machine whose PyTorch asks for configurations.

    Args:
        directory: The directory of the socket.
        pollers: The processes that ask.
        processes: Returns the ranks of this machine.
        windows: When they record.
    """

    def __init__(
        self,
        directory: Path,
        pollers: Pollers,
        processes: Callable[[], Sequence[RankProcess]],
        windows: Windows,
    ) -> None:
        self._directory = directory
        self._pollers = pollers
        self._processes = processes
        self._windows = windows

    def refuse(self, capture: Capture, ranks: Sequence[int]) -> dict[int, str]:
        """Return the ranks that it cannot record, each with the reason; see `Recorder`."""
        pids, unreached = self._pids(capture.run), self.unreached(capture.run, ranks)
        pollers = {rank: self._pollers.get(pids.get(rank, 0)) for rank in ranks if rank not in unreached}
        busy = [rank for rank, poller in pollers.items() if poller is not None and not poller.accepts]
        return dict.fromkeys(unreached, UNREACHED) | dict.fromkeys(busy, BUSY)

    def unreached(self, run: str, ranks: Sequence[int]) -> frozenset[int]:
        """Return the ranks of a run, by its id, whose PyTorch does not ask for profiles."""
        pids = self._pids(run)
        return frozenset(rank for rank in ranks if not self._asks(pids.get(rank, 0)))

    def record(
        self, capture: Capture, ranks: Sequence[int], directory: Path, cancelled: threading.Event
    ) -> dict[int, Path | str]:
        """Record ranks; see `Recorder`."""
        outcomes: dict[int, Path | str] = {}
        for _ in range(TRIES):
            for outcome in outcomes.values():
                if isinstance(outcome, Path):
                    outcome.unlink()  # all have to record the same time
            outcomes = self._record_once(capture, ranks, directory, cancelled)
            if LATE not in outcomes.values():
                break
        return outcomes

    def _record_once(
        self, capture: Capture, ranks: Sequence[int], directory: Path, cancelled: threading.Event
    ) -> dict[int, Path | str]:
        pids = self._pids(capture.run)
        recorded = [pids.get(rank, 0) for rank in ranks]
        window = self._windows.window(capture, ranks, recorded)
        seconds = self._windows.limit(capture, window, recorded) + WRITE_SECONDS
        recordings = {rank: Recording(rank, pids.get(rank, 0), directory, self._pollers, seconds) for rank in ranks}
        # libkineto may be allowed to write below this directory alone, and no path of the store can confuse its configuration.
        link = self._directory / capture.id
        try:
            link.symlink_to(directory)
            for rank, recording in recordings.items():
                text = configuration(f"{link}/trace_{rank}.json", window, capture.options, window.skipped.get(rank, 0))
                recording.offer(text, self._patience(recording.pid, window), window.start)
            return self._wait(capture.run, recordings, directory, cancelled)
        except OSError as error:
            return dict.fromkeys(ranks, f"{error.filename}: {(error.strerror or str(error)).lower()}")
        finally:
            for recording in recordings.values():
                self._pollers.withdraw(recording.pid)
            link.unlink(missing_ok=True)

    def _wait(
        self, run: str, recordings: dict[int, Recording], directory: Path, cancelled: threading.Event
    ) -> dict[int, Path | str]:
        """Return the outcomes of all recordings."""
        outcomes: dict[int, Path | str] = {}
        while recordings.keys() - outcomes:
            alive = self._pids(run).values()
            for rank in recordings.keys() - outcomes:
                outcome = recordings[rank].outcome(alive=recordings[rank].pid in alive)
                if outcome is not None:
                    outcomes[rank] = outcome
            if shutil.disk_usage(directory).free < FULL_BYTES:
                full = f"{directory}: no space left on device"  # PyTorch does not report it
                return dict.fromkeys(recordings, full) | outcomes
            if cancelled.wait(CHECK_SECONDS):
                return dict.fromkeys(recordings, "cancelled") | outcomes
        return outcomes

    def _pids(self, run: str) -> dict[int, int]:
        """Return the processes of a run on this machine, by rank."""
        return {process.rank: process.pid for process in self._processes() if process.run_id == run and process.pid > 0}

    def _asks(self, pid: int) -> bool:
        poller = self._pollers.get(pid)
        return will_ask(pid, self._directory) if poller is None else not poller.silent

    def _patience(self, pid: int, window: Window) -> float:
        """Return how long a process may take to ask; libkineto does not record if its start time has come."""
        if window.start:
            return window.start - LOOP_SECONDS - time.time()
        return self._windows.asks_in(pid) + DELAY_SECONDS
