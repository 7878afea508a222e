"""The processes that ask file systems which may hang: of those that wait for a request there is one at most."""

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

READY = b"ready"
"""What a child says before it is asked."""
START = 30.0
"""Seconds that it may take until then; where memory or CPUs are short it is some."""
RETRY, RETRY_AT_MOST = 30.0, 300.0
"""Seconds until one that could not start is followed by another, doubling."""
END = 0.5
"""Seconds that the end of the children is waited for."""

_log = logging.getLogger("trackside")


class Children:
    """For one thread that lives as long as they are wanted.

    Args:
        command: Started instead of our worker, by tests; this process's id is added to its arguments.
        clock: Seconds that the start and the pauses after it failed are measured by.
    """

    def __init__(self, command: Sequence[str] = (), clock: Callable[[], float] = time.monotonic) -> None:
        # -I keeps the working directory and the user's variables out, -S the site: neither is needed.
        self.command = [*(command or (sys.executable, "-I", "-S", str(Path(__file__).with_name("remote_worker.py"))))]
        self.idle: list[WorkerProcess] = []
        self._clock = clock
        self._starting: WorkerProcess | None = None
        self._ending: list[WorkerProcess] = []
        self._started_at, self._start_at, self._retry = 0.0, float("-inf"), RETRY
        self._may_start = self._failing = False

    def begin(self) -> None:
        """A round begins, in which one may be started: many at once would be a burden, and most are not needed."""
        self._may_start = True
        self._ending = [child for child in self._ending if not child.gone()]

    def free(self, until: float) -> WorkerProcess | None:
        """One that can be asked, when there is one until *until* of `time.monotonic`."""
        while self.idle:
            if not (child := self.idle.pop()).gone():
                return child
        try:
            return self._ready(until)
        except (OSError, WorkerFailed) as error:
            if self._starting is not None:
                self._end(self._starting)
                self._starting = None
            self._start_at, self._retry = self._clock() + self._retry, min(2 * self._retry, RETRY_AT_MOST)
            self._tell(error)
            return None

    def give_back(self, child: WorkerProcess) -> None:
        """It has answered."""
        self.idle.append(child)
        self._retry = RETRY
        if self._failing:
            self._failing = False
            _log.info("collector filesystem: the file systems that may hang are asked again")

    def failed(self, child: WorkerProcess, error: Exception) -> None:
        """It has not answered, and never will, through no fault of what it was to ask."""
        self._end(child)
        self._tell(error)

    def trim(self, count: int) -> None:
        """Ends those that wait beyond that many."""
        while len(self.idle) > count:
            self._end(self.idle.pop())

    def close(self, asking: list[WorkerProcess]) -> None:
        """Kills all and those that ask, and leaves to the kernel what has not ended after `END`."""
        children = [*self.idle, *asking, *self._ending, *([self._starting] if self._starting is not None else [])]
        for child in children:
            child.kill()
        until = time.monotonic() + END
        for child in children:
            child.leave(until)
        self.idle, self._ending, self._starting = [], [], None

    def _ready(self, until: float) -> WorkerProcess | None:
        now = self._clock()
        if self._starting is None and self._may_start and now >= self._start_at:
            self._may_start = False
            self._starting, self._started_at = WorkerProcess([*self.command, str(os.getpid())], self._clock), now
        if (child := self._starting) is None:
            return None
        if (said := child.answer(until)) is None:
            if now - self._started_at > START:
                raise WorkerFailed(f"it has not started for {START:.0f} s")
            return None
        if said != READY:
            raise WorkerFailed(f"it said {said[:80]!r} when it started")
        self._starting = None
        return child

    def _end(self, child: WorkerProcess) -> None:
        child.kill()
        self._ending.append(child)

    def _tell(self, error: Exception) -> None:
        """Once, until one works again."""
        if not self._failing:
            self._failing = True
            _log.warning(
                "collector filesystem: file systems that may hang are not asked, since the process that asks them "
                "fails: %s; are there memory and processes to spare (ulimit -u, the cgroup's pids.max and memory.max)?",
                error,
            )
