"""Start and keep the worker processes that read file systems which may hang; at most one of them is idle."""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from trackside_daemon.linux.worker_process import WorkerFailed, WorkerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

READY = b"ready"  # first line of a worker
START_SECONDS = 30.0  # longest time from a worker's start to its first line, for a machine short of memory or CPUs
RETRY_SECONDS = 30.0  # back-off after a worker that failed to start; it doubles with each failure
RETRY_AT_MOST = 300.0  # upper bound of the back-off, in seconds
CLOSE_SECONDS = 0.5

_log = logging.getLogger("trackside")


class RemoteWorkers:
    """The workers of one thread, which lives as long as they do.

    Args:
        command: Started instead of our worker, by tests; this process's id is appended.
        clock: Seconds that measure the start and the back-off.

    Attributes:
        command: The program and its arguments, without the process id.
        idle: Workers without a request.
    """

    def __init__(self, command: Sequence[str] = (), clock: Callable[[], float] = time.monotonic) -> None:
        # -I leaves out the working directory and the user's variables, -S the site; the worker needs none of them.
        self.command = [*(command or (sys.executable, "-I", "-S", str(Path(__file__).with_name("remote_worker.py"))))]
        self.idle: list[WorkerProcess] = []
        self._clock = clock
        self._starting: WorkerProcess | None = None
        self._ending: list[WorkerProcess] = []
        self._started_at = 0.0
        self._start_at = float("-inf")
        self._retry = RETRY_SECONDS
        self._may_start = False
        self._failing = False

    def begin(self) -> None:
        """Begin a tick, which may start one worker: starting many at once is a burden, and most are not needed."""
        self._may_start = True
        self._ending = [worker for worker in self._ending if not worker.is_reaped()]

    def acquire(self, until: float) -> WorkerProcess | None:
        """Return a worker without a request, waiting until *until* of `time.monotonic`; None when there is none."""
        while self.idle:
            if not (worker := self.idle.pop()).is_reaped():
                return worker
        try:
            return self._ready(until)
        except (OSError, WorkerFailed) as error:
            if self._starting is not None:
                self._kill(self._starting)
                self._starting = None
            self._start_at = self._clock() + self._retry
            self._retry = min(2 * self._retry, RETRY_AT_MOST)
            self._warn_once(error)
            return None

    def give_back(self, worker: WorkerProcess) -> None:
        """Return a worker that has answered."""
        self.idle.append(worker)
        self._retry = RETRY_SECONDS
        if self._failing:
            self._failing = False
            _log.info("collector filesystem: file systems that may hang are read again")

    def discard(self, worker: WorkerProcess, error: Exception) -> None:
        """Kill a worker that failed for a reason other than its file system."""
        self._kill(worker)
        self._warn_once(error)

    def trim(self, count: int) -> None:
        """Kill idle workers beyond *count*."""
        while len(self.idle) > count:
            self._kill(self.idle.pop())

    def close(self, busy: list[WorkerProcess]) -> None:
        """Kill all workers and the *busy* ones; leave to the kernel what has not ended after `CLOSE_SECONDS`."""
        workers = [*self.idle, *busy, *self._ending, *([self._starting] if self._starting is not None else [])]
        for worker in workers:
            worker.kill()
        until = time.monotonic() + CLOSE_SECONDS
        for worker in workers:
            worker.abandon(until)
        self.idle = []
        self._ending = []
        self._starting = None

    def _ready(self, until: float) -> WorkerProcess | None:
        now = self._clock()
        if self._starting is None and self._may_start and now >= self._start_at:
            self._may_start = False
            self._starting = WorkerProcess([*self.command, str(os.getpid())], self._clock)
            self._started_at = now
        if (worker := self._starting) is None:
            return None
        if (line := worker.receive(until)) is None:
            if now - self._started_at > START_SECONDS:
                raise WorkerFailed(f"it has not started for {START_SECONDS:.0f} s")
            return None
        if line != READY:
            raise WorkerFailed(f"it wrote {line[:80]!r} at its start")
        self._starting = None
        return worker

    def _kill(self, worker: WorkerProcess) -> None:
        worker.kill()
        self._ending.append(worker)

    def _warn_once(self, error: Exception) -> None:
        """Log an error once, until a worker answers again."""
        if not self._failing:
            self._failing = True
            _log.warning(
                "collector filesystem: file systems that may hang are not read, because the process that reads them "
                "fails: %s; check for free memory and processes (ulimit -u, the cgroup's pids.max and memory.max)",
                error,
            )
