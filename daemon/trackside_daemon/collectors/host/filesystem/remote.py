"""Read the room of file systems that may hang, in worker processes.

One worker reads them all, one after another. When a file system does not answer in time, its worker is left there, and
another worker continues with the others. So a worker hangs in one file system only, and no file system delays the
answer of another. A worker that fails on its own gives no answer, because its failure does not concern a file system.
"""

import errno
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from trackside_daemon.collectors.host.filesystem.mounts import Mount
from trackside_daemon.linux.worker_process import WorkerFailed, WorkerProcess
from trackside_daemon.model.backoff import Backoff

READY = b"ready"  # first line of a worker
START_SECONDS = 30.0  # longest time from a worker's start to its first line, for a machine short of memory or CPUs
RETRY_SECONDS = 30.0  # back-off after a worker that failed to start; it doubles with each failure
RETRY_AT_MOST = 300.0  # upper bound of the back-off, in seconds
CLOSE_SECONDS = 0.5

_log = logging.getLogger("trackside")
TICK_TIMEOUT = 0.05  # seconds that a tick waits for all answers; the next tick receives later ones
# Seconds without an answer after which a file system is stuck and its requests back off from `RETRY_SECONDS`.
DEADLINE = 5.0

Key = tuple[int, str, str]
"""`Mount.key`."""


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
        self._retry = Backoff(RETRY_SECONDS, RETRY_AT_MOST)
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
            self._start_at = self._clock() + self._retry.next_delay()
            self._warn_once(error)
            return None

    def give_back(self, worker: WorkerProcess) -> None:
        """Return a worker that has answered."""
        self.idle.append(worker)
        self._retry.reset()
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


class Room(NamedTuple):
    """The result of statvfs(3)."""

    unit: int  # bytes per block
    blocks: int  # number of blocks
    free: int  # unused blocks
    avail: int  # unused blocks that are not reserved for root
    files: int  # number of inodes
    files_free: int  # unused inodes


Answer = Room | OSError
"""`TimeoutError` when the file system is stuck."""


class _RemoteState:
    """The state of one file system.

    Attributes:
        last: The last answer.
        worker: The worker that has a request for it, since *requested_at*.
        stuck: The worker has been killed after `DEADLINE`, or because the mount is no longer wanted.
        hung: The killed worker hangs in the kernel.
        late: The last answer did not come within its tick.
        retry_at: Earliest time of the next request; *retry* is the back-off.
    """

    def __init__(self) -> None:
        self.last: Answer | None = None
        self.worker: WorkerProcess | None = None
        self.requested_at = 0.0
        self.stuck = False
        self.hung = False
        self.late = False
        self.retry_at = float("-inf")
        self.retry = Backoff(RETRY_SECONDS, RETRY_AT_MOST)


class RemoteFilesystems:
    """File systems that may hang, for one thread that lives as long as they are read.

    No worker starts before there is something to read.

    Args:
        command: Started instead of our worker, by tests; this process's id is appended.
        clock: Seconds that measure the deadline and the back-off.

    Attributes:
        workers: The processes that read.
        timeout: Seconds that a tick waits for answers.
    """

    def __init__(self, command: Sequence[str] = (), clock: Callable[[], float] = time.monotonic) -> None:
        self.workers = RemoteWorkers(command, clock)
        self.timeout = TICK_TIMEOUT
        self._clock = clock
        self._states: dict[Key, _RemoteState] = {}

    @property
    def busy(self) -> dict[Key, WorkerProcess]:
        """The workers that have a request and have not answered, by the mount's key."""
        return {key: state.worker for key, state in self._states.items() if state.worker is not None}

    def read(self, mounts: Sequence[Mount], prefix: str = "") -> dict[Key, Answer]:
        """Return the answer of each file system by the mount's key, at most `DEADLINE` old.

        A file system that has not answered yet, and is not stuck, is left out.

        Args:
            mounts: All mounts to read; the state of others is dropped.
            prefix: Path prefix of their mount points.
        """
        until = time.monotonic() + self.timeout
        self._drop_except({mount.key for mount in mounts})
        self.workers.begin()
        states = [(mount, self._states.setdefault(mount.key, _RemoteState())) for mount in mounts]
        for mount, state in sorted(states, key=lambda pair: pair[1].late):  # fast ones do not wait for slow ones
            self._update(state, os.fsencode(prefix + mount.point), until)
        self.workers.trim(1 if mounts else 0)
        return {mount.key: state.last for mount, state in states if state.last is not None and self._is_fresh(state)}

    def hasten(self) -> None:
        """Reset all back-offs to `RETRY_SECONDS`: the mounts have changed, perhaps to repair a stuck one."""
        for state in self._states.values():
            state.retry.reset()
            state.retry_at = min(state.retry_at, state.requested_at + RETRY_SECONDS)

    def close(self) -> None:
        """End the workers, or leave them to the kernel, within half a second. Call it when no thread reads."""
        self.workers.close([*self.busy.values()])
        self._states = {}

    def _is_fresh(self, state: _RemoteState) -> bool:
        return isinstance(state.last, TimeoutError) or self._clock() - state.requested_at <= DEADLINE

    def _drop_except(self, keys: set[Key]) -> None:
        """Drop the other file systems, except those in which a worker still hangs."""
        for key in self._states.keys() - keys:
            state = self._states[key]
            if state.worker is not None and not state.stuck:
                state.worker.kill()
                state.last = None
                state.stuck = True
            if state.worker is None or state.worker.is_reaped():
                del self._states[key]

    def _update(self, state: _RemoteState, path: bytes, until: float) -> None:
        """Receive the answer, and send the next request."""
        if state.worker is not None:
            self._receive(state, state.worker, 0.0)
        if state.worker is not None or self._clock() < state.retry_at:
            return
        if (worker := self.workers.acquire(until)) is None:
            return
        state.worker = worker
        state.requested_at = self._clock()
        try:
            # In hexadecimal digits, because a path may contain the newline that ends a request.
            worker.send(path.hex().encode())
        except (OSError, WorkerFailed) as error:
            self._fail(state, worker, error)
            return
        self._receive(state, worker, until)
        state.late = state.worker is not None

    def _receive(self, state: _RemoteState, worker: WorkerProcess, until: float) -> None:
        """Receive the answer if it comes before *until*; kill the worker after the deadline."""
        if state.stuck:
            self._await_end(state, worker)
            return
        try:
            line = worker.receive(until)
            answer = _decode(line) if line is not None else None
        except (WorkerFailed, ValueError, TypeError) as error:  # TypeError: too few or too many numbers
            self._fail(state, worker, error)
            return
        if answer is not None:
            state.last = answer
            state.worker = None
            state.retry.reset()
            self.workers.give_back(worker)
        elif self._clock() - state.requested_at > DEADLINE:
            worker.kill()
            state.last = TimeoutError(errno.ETIMEDOUT, f"no answer for {DEADLINE:.0f} s")
            state.stuck = True
            self._back_off(state)

    def _await_end(self, state: _RemoteState, worker: WorkerProcess) -> None:
        # A worker that survived SIGKILL for long hung in the kernel. Its end is the file system's first sign of life,
        # so the next request follows at once.
        state.hung = state.hung or worker.stuck
        if worker.is_reaped():
            if state.hung:
                state.retry_at = self._clock()
            state.worker = None
            state.stuck = False
            state.hung = False

    def _fail(self, state: _RemoteState, worker: WorkerProcess, error: Exception) -> None:
        state.worker = None
        state.last = None
        self.workers.discard(worker, error)
        self._back_off(state)

    def _back_off(self, state: _RemoteState) -> None:
        state.retry_at = self._clock() + state.retry.next_delay()


def _decode(line: bytes) -> Answer:
    numbers = [int(word) for word in line.split()]
    if len(numbers) == 1:
        return OSError(numbers[0], os.strerror(numbers[0]))
    return Room(*numbers)
