"""What all runs of one process share: their senders, the process's end, and its forks."""

from __future__ import annotations

import atexit
import sys
import threading
from time import monotonic
from typing import TYPE_CHECKING

from trackside.environment.exit_status import flush_timeout, outcome
from trackside.log import warn
from trackside.transport.sender import Sender

if TYPE_CHECKING:
    from types import TracebackType

    from trackside.run import Run


class Process:
    """What all runs of one process share."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.default: Run | None = None
        self.inherited: Run | None = None
        self.runs: set[Run] = set()
        self.outcome = ("finished", "")
        self._senders: dict[str | None, Sender] = {}
        self._parents: list[Sender | Run] = []
        self._watching = self._exiting = False

    def sender(self, endpoint: str | None) -> Sender | None:
        """The sender for an endpoint, None where there can be none; the first also watches for the process's end."""
        if self._exiting:
            return None
        if endpoint not in self._senders or not self._senders[endpoint].alive:
            try:
                self._senders[endpoint] = Sender(endpoint)
            except (OSError, RuntimeError) as error:
                warn(f"nothing can be sent, training goes on: {error}")
                return None
            self._watch_child_exit()
        if not self._watching:
            self._watch_exit()
        return self._senders[endpoint]

    def _watch_child_exit(self) -> None:
        """A child of multiprocessing catches what its target raises, and may end by os._exit, which calls no atexit."""
        processes = sys.modules.get("multiprocessing.process")
        if processes is None or processes.parent_process() is None:
            return
        from multiprocessing.util import Finalize

        def ended() -> None:
            kind, error, _ = sys.exc_info()
            self.outcome = self.outcome if kind is None else outcome(kind, error)
            self.exit()

        Finalize(None, ended, exitpriority=0)

    def _watch_exit(self) -> None:
        self._watching = True
        previous = sys.excepthook

        def excepthook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
            self.outcome = outcome(kind, error)
            previous(kind, error, traceback)

        sys.excepthook = excepthook
        atexit.register(self.exit)

    def exit(self) -> None:
        """Say the end of all runs, which share one flush timeout; a second Ctrl-C cuts it short.

        A part of it is left for the senders, which write what was not acknowledged to the spool.
        """
        self._exiting = True
        timeout = flush_timeout()
        deadline = monotonic() + timeout
        hurried = False
        for run in list(self.runs):
            left = 0.0 if hurried else max(0.0, deadline - timeout / 4 - monotonic())
            try:
                run._end(*self.outcome, provisional=True, timeout=left)  # noqa: SLF001
            except KeyboardInterrupt:
                hurried = True
        for sender in self._senders.values():
            sender.stop(max(0.2, deadline - monotonic()))
        self._senders = {}

    def forked(self) -> None:
        """In a forked child nothing sends: the parent's thread and socket are the parent's alone."""
        for run in self.runs:
            run.forked()
        for sender in self._senders.values():
            sender.forked()
        self.lock = threading.RLock()
        self.inherited = self.default
        self._parents += (*self._senders.values(), *self.runs)  # kept: nothing of ZeroMQ's or CUDA's is freed here
        self.runs = set()
        self._senders = {}
