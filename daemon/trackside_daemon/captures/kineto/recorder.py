"""Recordings by PyTorch's own profiler, which asks the daemon's socket for configurations."""

import logging
import math
import shutil
import stat
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from trackside.captures.kineto import BUSY, TESTED, socket_directory
from trackside.os_errors import file_error_text
from trackside_daemon.captures.kinds.kind import AskRanks, RankRecorder
from trackside_daemon.captures.kineto.environment import will_ask
from trackside_daemon.captures.kineto.profiler_socket import DELAY_SECONDS, Pollers, ProfilerSocket
from trackside_daemon.captures.kineto.protocol import RecordingWindow, configuration
from trackside_daemon.captures.kineto.socket_file import DirectoryError
from trackside_daemon.captures.kineto.windows import Windows
from trackside_daemon.model.capture import Capture
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.rank_process import RankProcess

CHECK_SECONDS = 0.05  # how often files are checked
TRIES = 3  # of recordings that start at a moment: on a busy machine, a process may get the request later

UNREACHED = (
    "its PyTorch does not ask for profiles: start it with `trackside run -- python …`, and one of the tested versions of"
    f" PyTorch ({', '.join(TESTED)})"
)

LATE = "its PyTorch got the request after the start of the recording: the machine is too busy"

log = logging.getLogger("trackside")


class RecordingLimits(NamedTuple):
    """The time, size and room of a recording."""

    write_seconds: float = 30.0  # time limit for the file, after the end of the recording
    end_seconds: float = 2.0  # time limit for the file of a process that has ended
    ask_seconds: float = DELAY_SECONDS  # how late a process may ask for its configuration
    trace_bytes: int = 1 << 30  # maximum size of a trace
    free_bytes: int = 64 * 1024  # with less room on the disk, no trace will be complete


LIMITS = RecordingLimits()


class RankRecording:
    """One rank that records.

    Args:
        rank: The rank.
        pid: Its process.
        directory: The directory of its file.
        pollers: The processes that ask.
        seconds: Time limit for the file, from when the process asks.
        limits: What it may take.
    """

    def __init__(
        self, rank: int, pid: int, directory: Path, pollers: Pollers, seconds: float, *, limits: RecordingLimits
    ) -> None:
        self.pid = pid
        self._rank = rank
        self._directory = directory
        self._pollers = pollers
        self._seconds = seconds
        self._limits = limits
        self._asked = False
        self._ended = False
        self._until = 0.0
        self._start = math.inf

    def offer(self, configuration: str, seconds: float, start: float = 0.0) -> None:
        """Offer the process a configuration, which it has to ask for within *seconds*.

        Args:
            configuration: What to record.
            seconds: The time limit.
            start: When it starts, as Unix time; 0 if the configuration has no time.
        """
        self._until = time.monotonic() + seconds
        if start:
            self._start = time.monotonic() + start - time.time()
        self._pollers.offer(self.pid, configuration)

    def outcome(self, *, alive: bool) -> Path | str | None:
        """Return the complete file, or why there is none in one line; None while neither is known.

        Args:
            alive: The process has not ended.
        """
        now = time.monotonic()
        if not self._asked and not self._pollers.waits(self.pid):
            self._asked = True
            self._until = now + self._seconds
        if not self._ended and not alive:
            self._ended = True
            self._until = min(self._until, now + self._limits.end_seconds)
        poller = self._pollers.get(self.pid)
        # libkineto writes another file, which it renames when it is complete.
        for path in self._directory.glob(f"trace_{self._rank}_*"):
            status = path.lstat()
            if status.st_size > self._limits.trace_bytes:
                return f"its trace is larger than {self._limits.trace_bytes >> 20} MiB; record fewer steps"
            if path.suffix == ".json" and stat.S_ISREG(status.st_mode):
                return path
        # While it records, it accepts no other configuration. One that comes after its start it discards.
        if self._asked and poller is not None and poller.accepts and poller.at > self._start:
            return LATE
        return None if now < self._until else self._reason()

    def _reason(self) -> str:
        if self._ended:
            return "its process ended before it had written the trace"
        if self._asked:
            return f"PyTorch wrote no trace within {self._seconds:.0f} s: it counted too few optimizer steps, or could not write"
        poller = self._pollers.get(self.pid)
        if poller is not None and not poller.accepts:
            return BUSY
        asks = poller is not None and not poller.silent
        return LATE if asks and self._start < math.inf else "its PyTorch has stopped asking for profiles"


class KinetoRecorder(RankRecorder):
    """Records ranks of this machine whose PyTorch asks for configurations.

    Args:
        directory: The directory of the socket.
        pollers: The processes that ask.
        processes: Returns the ranks of this machine.
        windows: When they record.
        limits: What a recording may take.
    """

    def __init__(
        self,
        directory: Path,
        pollers: Pollers,
        processes: Callable[[], Sequence[RankProcess]],
        windows: Windows,
        limits: RecordingLimits = LIMITS,
    ) -> None:
        self._directory = directory
        self._pollers = pollers
        self._processes = processes
        self._windows = windows
        self._limits = limits

    def refuse(self, capture: Capture, ranks: Sequence[int]) -> dict[int, str]:
        """Return the ranks that it cannot record, each with the reason; see `RankRecorder`."""
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
        """Record ranks; see `RankRecorder`."""
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
        seconds = self._windows.limit(capture, window, recorded) + self._limits.write_seconds
        recordings = {
            rank: RankRecording(rank, pids.get(rank, 0), directory, self._pollers, seconds, limits=self._limits)
            for rank in ranks
        }
        # libkineto may be allowed to write below this directory alone, and no path of the store can confuse its configuration.
        link = self._directory / capture.id
        try:
            link.symlink_to(directory)
            for rank, recording in recordings.items():
                text = configuration(f"{link}/trace_{rank}.json", window, capture.options, window.skipped.get(rank, 0))
                recording.offer(text, self._patience(recording.pid, window), window.start)
            return self._wait(capture.run, recordings, directory, cancelled)
        except OSError as error:
            return dict.fromkeys(ranks, file_error_text(error))
        finally:
            for recording in recordings.values():
                self._pollers.withdraw(recording.pid)
            link.unlink(missing_ok=True)

    def _wait(
        self, run: str, recordings: dict[int, RankRecording], directory: Path, cancelled: threading.Event
    ) -> dict[int, Path | str]:
        """Return the outcomes of all recordings."""
        outcomes: dict[int, Path | str] = {}
        while recordings.keys() - outcomes:
            alive = self._pids(run).values()
            for rank in recordings.keys() - outcomes:
                outcome = recordings[rank].outcome(alive=recordings[rank].pid in alive)
                if outcome is not None:
                    outcomes[rank] = outcome
            if shutil.disk_usage(directory).free < self._limits.free_bytes:
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

    def _patience(self, pid: int, window: RecordingWindow) -> float:
        """Return how long a process may take to ask; libkineto does not record if its start time has come."""
        if window.start:
            return window.start - self._windows.loop_seconds - time.time()
        return self._windows.asks_in(pid) + self._limits.ask_seconds


class Kineto:
    """The socket and the recorder. Without a socket, the recorder refuses all ranks, since none of them asks.

    Args:
        push_socket: The push socket or a file next to it, which determines the directory.
        processes: Returns the ranks of this machine.
        step_seconds: As for `Windows`; *ask* likewise.
        enabled: False for no socket.

    Attributes:
        recorder: The recorder.
    """

    def __init__(
        self,
        push_socket: Path,
        processes: Callable[[], Sequence[RankProcess]],
        step_seconds: Callable[[str, int], float | None],
        ask: AskRanks,
        *,
        enabled: bool,
    ) -> None:
        pollers, place = Pollers(), socket_directory(push_socket)
        self.recorder = KinetoRecorder(place, pollers, processes, Windows(pollers, step_seconds, ask))
        self._socket: ProfilerSocket | None = None
        if enabled:
            try:
                self._socket = ProfilerSocket(place, pollers)
            except DirectoryError as error:
                log.info("PyTorch's own profiler is not available: %s", error)

    def start(self) -> None:
        """Begin to answer."""
        if self._socket is not None:
            self._socket.start()

    def stop(self) -> None:
        """Remove the socket. You may call it without `start`, but once only."""
        if self._socket is not None:
            self._socket.stop()

    def batch(self) -> Batch:
        """Return the refused datagrams."""
        return Batch("captures:kineto", [] if self._socket is None else self._socket.samples(), complete=True)
