"""A process that reads checkpoints, as the daemon sees it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

import msgspec

from trackside_daemon.checkpoints.audit.request import Audited, Scanned
from trackside_daemon.linux.own_module import own_module
from trackside_daemon.linux.worker_process import WorkerFailed, WorkerProcess

if TYPE_CHECKING:
    from trackside_daemon.checkpoints.audit.request import AuditRequest, ScanRequest

COMMAND = own_module("trackside_daemon.checkpoints.audit")
IDLE_SECONDS = 120.0  # time without a request after which the process ends

T = TypeVar("T", Audited, Scanned)


class AuditProcess:
    """One request at a time, whose answer is polled for. The process starts with the first request.

    The thread that calls `begin` has to live as long as the process.

    Args:
        memory: Most bytes that the process uses.
    """

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._worker: WorkerProcess | None = None
        self._until = 0.0
        self.busy = False

    def begin(self, request: AuditRequest | ScanRequest, seconds: float) -> None:
        """Send a request, which may take some seconds.

        Raises:
            WorkerFailed: The process cannot be started, or has ended.
        """
        try:
            self._worker = self._worker or WorkerProcess(COMMAND, memory=self._memory)
            self._worker.send(msgspec.json.encode(request))
        except (OSError, WorkerFailed) as error:
            self.stop()
            raise error if isinstance(error, WorkerFailed) else WorkerFailed(f"it cannot be started: {error}") from None
        self.busy, self._until = True, time.monotonic() + seconds

    def poll(self, kind: type[T], wait: float = 0.0) -> T | None:
        """Return the answer, after *wait* seconds at most; None while there is none.

        Raises:
            WorkerFailed: The process has ended, or takes too long; the next request starts another.
        """
        now = time.monotonic()
        if self._worker is None or not self.busy:
            if self._worker is not None and now > self._until + IDLE_SECONDS:
                self.stop()
            return None
        try:
            line = self._worker.receive(now + wait)
            if line is None and now < self._until:
                return None
            answer = msgspec.json.decode(b"" if line is None else line, type=kind)
        except (WorkerFailed, msgspec.MsgspecError) as error:
            self.stop()
            raise WorkerFailed(str(error) if now < self._until else "it takes too long") from None
        self.busy, self._until = False, now
        return answer

    def stop(self) -> None:
        """End the process; one that hangs in the kernel is left to it."""
        worker, self._worker, self.busy = self._worker, None, False
        if worker is not None:
            worker.kill()
            worker.abandon(time.monotonic() + 1.0)
