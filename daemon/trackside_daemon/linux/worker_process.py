"""A worker process as its parent sees it: three pipes, and no wait longer than requested."""

import contextlib
import os
import select
import signal
import subprocess  # noqa: TID251 - this file starts the workers
import time
from collections.abc import Callable
from typing import IO, cast

from trackside_daemon.linux.process_limits import limit_memory

ANSWER_BYTES = 4 * 1024 * 1024  # longest line that is accepted as an answer

# A kill inside a driver call can freeze the GPU (dcgm-exporter#84).
GRACE = 5.0  # seconds between SIGTERM and SIGKILL

# A process that hangs in the kernel ignores even SIGKILL.
REAP_SECONDS = 1.0  # longest wait of a tick for the status of a process that has closed its output
KILL_GRACE = 1.0  # seconds after SIGKILL from which the worker counts as stuck


class WorkerFailed(Exception):  # noqa: N818 - the message is a sentence about the worker
    """The worker cannot answer any further request; the message gives the reason in one line.

    Attributes:
        reason: ``crash`` when a signal ended it, ``exit`` when it exited, else ``error``.
    """

    def __init__(self, text: str, reason: str = "error") -> None:
        super().__init__(text)
        self.reason = reason


class WorkerProcess:
    """One worker process, from its start until it is reaped.

    The kernel ends it with the *thread* that started it (PR_SET_PDEATHSIG), so that thread should live as long.

    Args:
        command: The program and its arguments.
        clock: Seconds that measure the grace periods after a signal.
        directory: Its working directory; None for this process's, which keeps the file system busy and others may write.
        memory: Most bytes of its address space; None for no limit.
        reap_seconds: Longest wait for the status of a process that has closed its output.

    Raises:
        OSError: The command cannot be started.
    """

    def __init__(
        self,
        command: list[str],
        clock: Callable[[], float] = time.monotonic,
        *,
        directory: str | None = "/",
        memory: int | None = None,
        reap_seconds: float = REAP_SECONDS,
    ) -> None:
        self._clock = clock
        self._reap_seconds = reap_seconds
        pipe = subprocess.PIPE
        # Unbuffered, because poll(2) does not see bytes that Python has read ahead.
        self._process = subprocess.Popen(  # noqa: S603 - ours
            command, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, cwd=directory
        )
        if memory is not None:
            limit_memory(self._process.pid, memory)
        self._requests = cast("IO[bytes]", self._process.stdin)
        self._answers = cast("IO[bytes]", self._process.stdout)
        self._errors = cast("IO[bytes]", self._process.stderr)
        # `_drain_errors` reads until nothing is left, and must not wait for more.
        os.set_blocking(self._errors.fileno(), False)
        self._poller = select.poll()
        self._poller.register(self._answers, select.POLLIN)
        self._received = b""
        self._last_error = b""
        self._terminated_at: float | None = None
        self._killed_at: float | None = None

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """The exit status; None until it is reaped."""
        return self._process.returncode

    @property
    def ending(self) -> bool:
        """True after `terminate` or `kill`."""
        return self._terminated_at is not None

    @property
    def stuck(self) -> bool:
        """True when it still exists `KILL_GRACE` after SIGKILL."""
        if self._killed_at is None or self._clock() - self._killed_at <= KILL_GRACE:
            return False
        return self._process.poll() is None

    def send(self, request: bytes) -> None:
        """Send a request, a line without its end.

        Raises:
            WorkerFailed: The worker has ended, or wrote without a request.
        """
        # Unexpected output means that requests and answers no longer correspond.
        while self._poller.poll(0):
            self._read_answers()
        if self._received:
            raise WorkerFailed(f"it wrote without a request: {self._received[:80]!r}")
        with contextlib.suppress(BrokenPipeError):  # the end of its output has the better error
            self._requests.write(request + b"\n")

    def receive(self, until: float) -> bytes | None:
        """Return its next line, waiting until *until* of `time.monotonic`; None when there is none.

        Raises:
            WorkerFailed: The worker has ended, or its output is not a line.
        """
        while b"\n" not in self._received:
            self._drain_errors()
            if not self._poller.poll(max(0.0, until - time.monotonic()) * 1000):
                return None
            self._read_answers()
        line, _, self._received = self._received.partition(b"\n")
        return line

    def end_input(self) -> None:
        """Close its input, the request to end by itself."""
        self._requests.close()

    def terminate(self) -> None:
        """Close its input and send SIGTERM."""
        self._terminated_at = self._clock()
        self._requests.close()
        self._process.terminate()

    def kill(self) -> None:
        """Close its input and send SIGKILL, for a worker that is in no driver call."""
        self._terminated_at = self._clock()
        self._requests.close()
        self._send_kill()

    def is_reaped(self) -> bool:
        """Reap the worker if it has ended, and return whether it has.

        Sends SIGKILL when `terminate` was called more than `GRACE` seconds ago.
        """
        if self._process.poll() is not None:
            self._close_pipes()
            return True
        if self._terminated_at is not None and self._clock() - self._terminated_at > GRACE:
            self._send_kill()
        return False

    def wait_reaped(self) -> bool:
        """Wait at most `GRACE` for the end, and `KILL_GRACE` after SIGKILL; return whether the worker is reaped.

        Another thread than the one that calls the other methods may call this one.
        """
        if self._ends_within(GRACE):
            return True
        self._send_kill()
        return self._ends_within(KILL_GRACE)

    def abandon(self, until: float) -> None:
        """Wait for its end until *until* of `time.monotonic`, then leave it to the kernel."""
        self._ends_within(max(0.0, until - time.monotonic()))
        self._close_pipes()

    def close(self, patience: float = 1.0) -> None:
        """End it within three seconds more than *patience*, or leave it to the kernel: in state D it ignores even SIGKILL."""
        self._requests.close()
        for number, timeout in ((None, patience), (signal.SIGTERM, 2.0), (signal.SIGKILL, 1.0)):
            if number is not None:
                self._process.send_signal(number)
            if self._ends_within(timeout):
                break
        self._close_pipes()

    def _ends_within(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _send_kill(self) -> None:
        self._process.kill()
        # `is_reaped` may send SIGKILL at every tick; the time of the first one counts.
        self._killed_at = self._killed_at or self._clock()

    def _read_answers(self) -> None:
        chunk = os.read(self._answers.fileno(), 65536)
        if not chunk:
            raise self._ended_error()
        self._received += chunk
        if len(self._received) > ANSWER_BYTES:
            raise WorkerFailed(f"it wrote {len(self._received)} bytes without the end of a line")

    def _drain_errors(self) -> None:
        """Keep the last line of stderr, and keep the pipe from filling up."""
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self._errors.fileno(), 65536):
                self._last_error = (self._last_error + chunk)[-4096:]

    def _ended_error(self) -> WorkerFailed:
        try:
            # The kernel closes a process's files some time before it can be reaped, on a busy machine a second.
            status = self._process.wait(self._reap_seconds)
        except subprocess.TimeoutExpired:
            return WorkerFailed("it closed its output")
        self._drain_errors()
        return WorkerFailed(end_text(status, self._last_error), "exit" if status >= 0 else "crash")

    def _close_pipes(self) -> None:
        for end in (self._requests, self._answers, self._errors):
            end.close()


def end_text(status: int, errors: bytes) -> str:
    """Return how a child process ended, from its `subprocess.Popen.returncode` and what it wrote to stderr, in one line."""
    end = f"it exited with status {status}" if status >= 0 else f"it was killed: {signal.strsignal(-status)}"
    lines = errors.decode(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"{end}: {last[:200]}" if last else end
