"""Signals that arrive while a command runs, and which of them the command has not received itself.

Ctrl-C, and a signal to the process group or to every process of a job, reaches the command too. Forwarding it would
deliver it twice, and the second delivery may cut short what the first began, such as a last checkpoint. A signal to this
process alone is meant for the command and must be forwarded.
"""

import os
import select
import signal
import time
from contextlib import suppress
from queue import Empty, SimpleQueue

from trackside_daemon.linux.signals import end_with_parent

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
FORWARDED = (*ENDING, signal.SIGUSR1, signal.SIGUSR2)  # signals that end a job or announce its end
PROBE_SECONDS = 0.2  # time for the probe to report a signal of the whole group


class Signals:
    """The signals that this process receives, in order; signals that it ignores already (``nohup``) stay ignored.

    Attributes:
        handled: The signals that it does not ignore.
        ending: The last signal that ends a job; 0 if none came.
    """

    def __init__(self) -> None:
        # Its put() may interrupt another put(), as a signal handler does.
        self._received: SimpleQueue[int] = SimpleQueue()
        self.ending = 0
        self.handled = [number for number in FORWARDED if signal.getsignal(number) is not signal.SIG_IGN]
        # SIGCHLD ends a wait in `get` when the command ends.
        for number in (*self.handled, signal.SIGCHLD):
            signal.signal(number, self._handle)

    def get(self, timeout: float | None = None) -> int:
        """Wait for a signal, and return its number; 0 if none came within *timeout* seconds."""
        with suppress(Empty):
            return self._received.get(timeout=timeout)
        return 0

    def wake(self) -> None:
        """End a wait in `get`, as if nothing came; any thread may call this."""
        self._received.put(0)

    def clear(self) -> None:
        """Forget all signals that came."""
        self.ending = 0
        with suppress(Empty):
            while True:
                self._received.get_nowait()

    def close(self) -> None:
        """Ignore them from now on: Python restores their default actions when it exits, and the status is the command's."""
        for number in self.handled:
            signal.signal(number, signal.SIG_IGN)

    def _handle(self, number: int, _: object) -> None:
        if number in ENDING:
            self.ending = number
        self._received.put(number)


class GroupProbe:
    """A process of this group that receives the signals of the group and nothing else; create it before any thread.

    Args:
        numbers: The signals to report.
    """

    def __init__(self, numbers: list[signal.Signals]) -> None:
        self._reports, theirs = os.pipe()
        self._seen = b""
        parent = os.getpid()
        # Before the fork, so that the probe is never without this mask and misses no signal.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self._pid = os.fork()
        if not self._pid:
            _report_signals(parent, self._reports, theirs, numbers)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(theirs)

    def received(self, number: int) -> bool:
        """Return whether the whole group received a signal that this process has just received."""
        until = time.monotonic() + PROBE_SECONDS
        while number not in self._seen:
            if not select.select([self._reports], [], [], max(0.0, until - time.monotonic()))[0]:
                return False
            if not (numbers := os.read(self._reports, 64)):  # the probe was killed
                return False
            self._seen += numbers
        self._seen = self._seen.replace(bytes((number,)), b"")
        return True

    def close(self) -> None:
        """End the process."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._reports)


def _report_signals(parent: int, ours: int, reports: int, numbers: list[signal.Signals]) -> None:
    """Write each signal to the pipe *reports*, in the probe's process; never return."""
    try:
        end_with_parent(parent, signal.SIGKILL)
        os.close(ours)
        while True:
            os.write(reports, bytes((signal.sigwait(numbers),)))
    finally:
        os._exit(1)
