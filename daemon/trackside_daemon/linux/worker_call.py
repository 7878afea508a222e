"""Ask a process that runs one of our modules, and serve such requests: a request and its answer are a line of JSON each."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from math import inf
from types import TracebackType
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from trackside_daemon.linux.child_process import own_module
from trackside_daemon.linux.process_limits import allowed_memory, limit_this_process, limit_time
from trackside_daemon.linux.signals import end_with_parent, reset_signals
from trackside_daemon.linux.worker_process import WorkerFailed, WorkerProcess

POLL_SECONDS = 1.0  # between two looks whether a request is to be given up
END_SECONDS = 5.0  # the longest wait for a killed process, whose memory the kernel frees first
REAP_SECONDS = 30.0  # the longest wait for one that has closed its output, and on a busy machine ends seconds later
IDLE_SECONDS = 120.0  # time without a request after which `CallWorker.poll` ends the process

A = TypeVar("A")
R = TypeVar("R")


class _Reply(msgspec.Struct):
    """A line of the process: an answer, or why there is none."""

    answer: msgspec.Raw = msgspec.Raw(b"null")
    error: str = ""


class CallWorker(Generic[A]):
    """A process that answers requests. It starts with the first one, and anew after one that it failed on.

    The thread that starts it has to live as long; see `WorkerProcess`.

    Args:
        module: The module, which calls `serve`.
        answer: The type of its answers, never None.
        memory: Most bytes of its address space; None for no limit.
        name: Its name, with which the reason of a failure of the process begins; not of work that it cannot do.
        python: The interpreter.
        directory: Its working directory; None for this process's.

    Attributes:
        busy: A request has no answer yet.
    """

    def __init__(
        self,
        module: str,
        answer: type[A],
        *,
        memory: int | None = None,
        name: str = "",
        python: str = sys.executable,
        directory: str | None = "/",
    ) -> None:
        self.busy = False
        self._module, self._python, self._directory, self._memory = module, python, directory, memory
        self._decode = msgspec.json.Decoder(answer).decode
        self._prefix = f"{name} failed: " if name else ""
        self._process: WorkerProcess | None = None
        self._seconds = 0.0
        self._since = 0.0  # when it was asked, or has answered

    def __enter__(self) -> CallWorker[A]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end()

    @property
    def pid(self) -> int | None:
        """The process id; None while it does not run."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start it, unless it runs.

        Raises:
            WorkerFailed: It cannot be started.
        """
        if self._process is not None:
            return
        command = own_module(self._module, python=self._python)
        try:
            self._process = WorkerProcess(
                command, directory=self._directory, memory=self._memory, reap_seconds=REAP_SECONDS
            )
        except OSError as error:
            raise WorkerFailed(f"{self._prefix}it cannot be started: {error}") from None
        self._since = time.monotonic()

    def begin(self, request: object, seconds: float = inf) -> None:
        """Send a request, which may take some seconds.

        Raises:
            WorkerFailed: The process cannot be started, or has ended.
        """
        self.start()
        if self._process is not None:
            try:
                self._process.send(msgspec.json.encode(request))
            except WorkerFailed as error:
                raise self._failed(error) from None
            self.busy, self._since, self._seconds = True, time.monotonic(), seconds

    def poll(self, wait: float = 0.0) -> A | None:
        """Return the answer, after *wait* seconds at most; None while there is none.

        Raises:
            WorkerFailed: The process has ended, takes too long, or cannot do the work.
        """
        if not self.busy:
            if time.monotonic() > self._since + IDLE_SECONDS:
                self.end()
            return None
        answer = self.next(min(wait, self._since + self._seconds - time.monotonic()))
        if answer is not None:
            self.busy, self._since = False, time.monotonic()
        elif time.monotonic() >= self._since + self._seconds:
            raise self._failed(WorkerFailed(f"it took longer than {self._seconds:.0f} s"))
        return answer

    def next(self, wait: float) -> A | None:
        """Return the next of several answers to a request, after *wait* seconds at most; None while there is none.

        Raises:
            WorkerFailed: As for `poll`, but whatever time it takes.
        """
        process = self._process
        if process is None:
            return None
        try:
            line = process.receive(time.monotonic() + wait)
            if line is None:
                return None
            reply = msgspec.json.decode(line, type=_Reply)
            if not reply.error:
                return self._decode(reply.answer)
        except WorkerFailed as error:
            raise self._failed(error) from None
        except msgspec.MsgspecError as error:
            raise self._failed(WorkerFailed(f"its answer cannot be used: {error}")) from None
        self.busy = False
        raise WorkerFailed(reply.error)

    def ask(self, request: object, seconds: float, stopped: Callable[[], str] = lambda: "") -> A:
        """Return the answer to a request.

        Args:
            request: The request.
            seconds: The longest wait.
            stopped: Returns why the request is given up, each second; empty to go on.

        Raises:
            WorkerFailed: There is none.
        """
        self.begin(request, seconds)
        while (answer := self.poll(POLL_SECONDS)) is None:
            if reason := stopped():
                self.end()
                raise WorkerFailed(reason)
        return answer

    def end_input(self) -> None:
        """Close its input, the request to end by itself."""
        if self._process is not None:
            self._process.end_input()

    def end(self, patience: float | None = None) -> None:
        """Kill the process, or give it so many seconds to end at the end of its input; one that hangs is left to the kernel."""
        process, self._process, self.busy = self._process, None, False
        if process is None:
            return
        if patience is not None:
            process.close(patience)
            return
        process.kill()
        process.abandon(time.monotonic() + END_SECONDS)

    def _failed(self, error: WorkerFailed) -> WorkerFailed:
        self.end()
        return WorkerFailed(f"{self._prefix}{error}", error.reason)


class WorkLimits(NamedTuple):
    """Limits of the process that does some work; see `trackside_daemon.linux.process_limits`."""

    cpu_seconds: int = 0  # most seconds of a processor for the request; 0 for no limit
    # Seconds of a processor for which the process keeps its priority, as of its first request.
    quick_seconds: float = 0.0


def serve(
    request: type[R] | Any,
    work: Callable[[R], object],
    limits: Callable[[R], WorkLimits] | None = None,
    expected: tuple[type[Exception], ...] = (),
) -> int:
    """Answer the requests of a `CallWorker` until the end of the input; return the exit status.

    What else the process writes to standard output goes to standard error.

    Args:
        request: The type of the requests.
        work: Returns the answer to a request.
        limits: Returns its limits; None for none, and the usual priority.
        expected: Errors of *work* whose message is the reason for which there is no answer; others end the process.
    """
    reset_signals()
    end_with_parent(None, signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.stdout = sys.stderr  # whose last line is the reason of a failure
    decode = msgspec.json.Decoder(request).decode
    limited = False
    for line in sys.stdin.buffer:
        asked = decode(line)
        if limits is not None:
            of_this = limits(asked)
            if not limited:
                limit_this_process(quick_seconds=of_this.quick_seconds)
                limited = True
            if of_this.cpu_seconds:
                limit_time(of_this.cpu_seconds)
        try:
            reply: dict[str, object] = {"answer": work(asked)}
        except expected as error:
            reply = {"error": str(error) or type(error).__name__}
        except MemoryError:
            reply = {"error": f"it needs more memory than the {allowed_memory() >> 20} MiB of limits.worker_memory"}
        answers.write(msgspec.json.encode(reply) + b"\n")
        answers.flush()
    return 0
