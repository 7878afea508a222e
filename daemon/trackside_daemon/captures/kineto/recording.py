"""The recording of one rank, as far as its file shows it: PyTorch reports neither progress nor failure."""

from __future__ import annotations

import math
import stat
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from trackside_daemon.captures.kineto.pollers import Pollers

BUSY = "a profiler is active in it already"
LATE = "its PyTorch got the request after the start of the recording: the machine is too busy"
END_SECONDS = 2.0  # time limit for the file of a process that has ended
TRACE_BYTES = 1 << 30  # maximum size of a trace


class Recording:
    """One rank that records.

    Args:
        rank: The rank.
        pid: Its process.
        directory: The directory of its file.
        pollers: The processes that ask.
        seconds: Time limit for the file, from when the process asks.
    """

    def __init__(self, rank: int, pid: int, directory: Path, pollers: Pollers, seconds: float) -> None:
        self.pid = pid
        self._rank = rank
        self._directory = directory
        self._pollers = pollers
        self._seconds = seconds
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
            self._until = min(self._until, now + END_SECONDS)
        poller = self._pollers.get(self.pid)
        # libkineto writes another file, which it renames when it is complete.
        for path in self._directory.glob(f"trace_{self._rank}_*"):
            status = path.lstat()
            if status.st_size > TRACE_BYTES:
                return f"its trace is larger than {TRACE_BYTES >> 20} MiB; record fewer steps"
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
