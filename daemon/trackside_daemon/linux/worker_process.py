"""A worker process as its parent holds it: three pipes, and no wait that is longer than asked for."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess  # noqa: TID251 - what children are started by
import time
from typing import IO, TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Callable

ANSWER_BYTES = 4 * 1024 * 1024
"""A longer line is not an answer."""

GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL: a kill inside a driver call can freeze the GPU (dcgm-exporter#84)."""


KILL_GRACE = 1.0
"""Seconds between SIGKILL and calling it stuck: one that hangs in the kernel ignores even that."""


class WorkerFailed(Exception):  # noqa: N818 - a sentence about the child
    """The child cannot be asked any more; the message says why, in one line.

    Attributes:
        reason: ``crash`` when a signal ended it, ``exit`` when it ended by itself, else ``error``.
    """

    def __init__(self, text: str, reason: str = "error") -> None:
        super().__init__(text)
        self.reason = reason


class WorkerProcess:
    """One process, from its start until it is reaped.

    The kernel ends it with the *thread* that started it (PR_SET_PDEATHSIG), so that thread should live as long.

    Args:
        command: The program and its arguments.
        clock: Seconds that the grace after a signal is measured by.

    Raises:
        OSError: The command cannot be started.
    """

    def __init__(self, command: list[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0)  # noqa: S603 - ours
        self._requests, self._answers, self._complaints = (
            cast("IO[bytes]", end) for end in (self._process.stdin, self._process.stdout, self._process.stderr)
        )
        os.set_blocking(self._complaints.fileno(), False)
        self._poller = select.poll()
        self._poller.register(self._answers, select.POLLIN)
        self._received = b""
        self._last_complaint = b""
        self._told_to_end: float | None = None
        self._killed: float | None = None

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def ending(self) -> bool:
        """Whether it was told to end."""
        return self._told_to_end is not None

    def ask(self, request: bytes) -> None:
        """Sends a request, a line without its end.

        Raises:
            WorkerFailed: It has ended, or speaks without being asked: its next answer could be to any request.
        """
        while self._poller.poll(0):
            self._receive()
        if self._received:
            raise WorkerFailed(f"it spoke without being asked: {self._received[:80]!r}")
        with contextlib.suppress(BrokenPipeError):  # the end of its output says more
            self._requests.write(request + b"\n")

    def answer(self, until: float) -> bytes | None:
        """The next line that it writes, waited for until *until* of `time.monotonic`; None when there is none.

        Raises:
            WorkerFailed: It has ended, or what it writes is no line.
        """
        while b"\n" not in self._received:
            self._drain_complaints()
            if not self._poller.poll(max(0.0, until - time.monotonic()) * 1000):
                return None
            self._receive()
        line, _, self._received = self._received.partition(b"\n")
        return line

    @property
    def stuck(self) -> bool:
        """Whether it is still there `KILL_GRACE` after SIGKILL."""
        return self._killed is not None and self._clock() - self._killed > KILL_GRACE and self._process.poll() is None

    def end(self) -> None:
        """Tells it to end, by the end of its input and SIGTERM."""
        self._told_to_end = self._clock()
        self._requests.close()
        self._process.terminate()

    def gone(self) -> bool:
        """Whether it is reaped. SIGKILL follows when it was told to end more than `GRACE` seconds ago."""
        if self._process.poll() is not None:
            self._close_pipes()
            return True
        if self._told_to_end is not None and self._clock() - self._told_to_end > GRACE:
            self._kill()
        return False

    def ended(self) -> bool:
        """Waits for the end that it was told of, at most `GRACE` and, after SIGKILL, `KILL_GRACE`; whether it is reaped.

        For another thread than the one that calls the rest.
        """
        if self._ends_within(GRACE):
            return True
        self._kill()
        return self._ends_within(KILL_GRACE)

    def _ends_within(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _kill(self) -> None:
        self._process.kill()
        self._killed = self._killed or self._clock()

    def kill(self) -> None:
        """Ends it by SIGKILL, at once: for one that stands in no driver."""
        self._told_to_end = self._clock()
        self._requests.close()
        self._kill()

    def leave(self, until: float) -> None:
        """Waits for its end until *until* of `time.monotonic`, and then leaves it to the kernel."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, until - time.monotonic()))
        self._close_pipes()

    def close(self) -> None:
        """Ends it within four seconds, or leaves it to the kernel: one in D state ignores even SIGKILL."""
        self._requests.close()
        for demand, patience in ((None, 1.0), (signal.SIGTERM, 2.0), (signal.SIGKILL, 1.0)):
            if demand is not None:
                self._process.send_signal(demand)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(patience)
                break
        self._close_pipes()

    def _receive(self) -> None:
        chunk = os.read(self._answers.fileno(), 65536)
        if not chunk:
            raise self._epitaph()
        self._received += chunk
        if len(self._received) > ANSWER_BYTES:
            raise WorkerFailed(f"it wrote {len(self._received)} bytes without the end of a line")

    def _drain_complaints(self) -> None:
        """Keeps the last line of stderr, and keeps the pipe from filling up."""
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self._complaints.fileno(), 65536):
                self._last_complaint = (self._last_complaint + chunk)[-4096:]

    def _epitaph(self) -> WorkerFailed:
        try:
            status = self._process.wait(0.2)
        except subprocess.TimeoutExpired:
            return WorkerFailed("it closed its output")
        reason = "exit" if status >= 0 else "crash"
        end = f"it exited with status {status}" if status >= 0 else f"it was killed: {signal.strsignal(-status)}"
        self._drain_complaints()
        lines = self._last_complaint.decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return WorkerFailed(f"{end}: {last[:200]}" if last else end, reason)

    def _close_pipes(self) -> None:
        for end in (self._requests, self._answers, self._complaints):
            end.close()
