"""Signals that come while a command runs, and which of them the command has not got by itself.

Ctrl-C, and whoever signals the whole process group or every process of a job, reaches the command too; to hand it on would
make two of one, and the second cuts short what the first has begun, such as a last checkpoint. Who signals this process
alone means the command, which has to be told.
"""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import suppress
from queue import Empty, SimpleQueue

from trackside_daemon.linux.parent_death import end_with_parent

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
FORWARDED = (*ENDING, signal.SIGUSR1, signal.SIGUSR2)
"""With these a job is ended, or told that it soon will be."""

SEEN_SECONDS = 0.2
"""What the group gets all of it gets at once; the witness has this long to say so."""


class Signals:
    """Those that this process gets, in their order, from now on; what it was told to ignore (``nohup``) it still does.

    Attributes:
        heeded: Those that it does not ignore.
        asked: The last that ends a job; 0 when none has come.
    """

    def __init__(self) -> None:
        self._came: SimpleQueue[int] = SimpleQueue()
        self.asked = 0
        self.heeded = [one for one in FORWARDED if signal.getsignal(one) is not signal.SIG_IGN]
        for number in (*self.heeded, signal.SIGCHLD):
            signal.signal(number, self._take)

    def next(self, seconds: float | None = None) -> int:
        """Wait for one, at most so long; 0 when none has come."""
        with suppress(Empty):
            return self._came.get(timeout=seconds)
        return 0

    def forget(self) -> None:
        """Those that have come are nobody's any more."""
        self.asked = 0
        with suppress(Empty):
            while True:
                self._came.get_nowait()

    def _take(self, number: int, _: object) -> None:
        if number in ENDING:
            self.asked = number
        self._came.put(number)


class Witness:
    """A process of this group that nobody knows: what it gets, the group has got. To be made before any thread is.

    Args:
        numbers: The signals that it is to tell of.
    """

    def __init__(self, numbers: list[signal.Signals]) -> None:
        self._told, theirs = os.pipe()
        self._seen = b""
        parent = os.getpid()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self._pid = os.fork()
        if not self._pid:
            _tell(parent, self._told, theirs, numbers)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(theirs)

    def saw(self, number: int) -> bool:
        """Whether it has got a signal that has just come here."""
        until = time.monotonic() + SEEN_SECONDS
        while number not in self._seen:
            if not select.select([self._told], [], [], max(0.0, until - time.monotonic()))[0]:
                return False
            if not (piece := os.read(self._told, 64)):  # it was killed
                return False
            self._seen += piece
        self._seen = self._seen.replace(bytes((number,)), b"")
        return True

    def end(self) -> None:
        """End it."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._told)


def _tell(parent: int, told: int, theirs: int, numbers: list[signal.Signals]) -> None:
    """What the witness does; it never returns from here."""
    try:
        end_with_parent(parent, signal.SIGKILL)
        os.close(told)
        while True:
            os.write(theirs, bytes((signal.sigwait(numbers),)))
    finally:
        os._exit(1)
