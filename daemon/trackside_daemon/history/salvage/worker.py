"""The process that looks for damage and salvages rows, as the daemon sees it."""

from __future__ import annotations

import time

import msgspec

from trackside_daemon.history.salvage.salvage import Salvaged  # noqa: TC001  msgspec reads the type
from trackside_daemon.linux.own_module import own_module
from trackside_daemon.linux.worker_process import WorkerFailed, WorkerProcess

COMMAND = own_module("trackside_daemon.history.salvage")
MEMORY_BYTES = 512 << 20  # a file of 10 GiB needs 100 MB


class Request(msgspec.Struct):
    """A file to look at or to salvage.

    Attributes:
        source: The file.
        target: The new file; empty to look for damage only, which is the error of the answer then.
        seconds: The longest time of salvaging.
    """

    source: str
    target: str = ""
    seconds: float = 0.0


class Answer(msgspec.Struct):
    """The end of the work.

    Attributes:
        error: Why there is no result; empty if there is one.
        damage: What is damaged; empty if nothing is.
        salvaged: What was copied.
    """

    error: str = ""
    damage: str = ""
    salvaged: Salvaged | None = None


class Worker:
    """A process that answers one request. The thread that makes it has to live as long.

    Args:
        request: The request.
    """

    def __init__(self, request: Request) -> None:
        self._answer: Answer | None = None
        self._process: WorkerProcess | None = None
        try:
            self._process = WorkerProcess(COMMAND, memory=MEMORY_BYTES)
            self._process.send(msgspec.json.encode(request))
        except (OSError, WorkerFailed) as error:
            self._answer = Answer(error=f"its process cannot be started: {error}")

    def answer(self, seconds: float) -> Answer | None:
        """Return the answer, waiting so many seconds at most; None if there is none yet."""
        if self._answer is None and self._process is not None:
            try:
                line = self._process.receive(time.monotonic() + seconds)
                self._answer = None if line is None else msgspec.json.decode(line, type=Answer)
            except WorkerFailed as error:
                self._answer = Answer(error=f"its process ended: {error}")
        return self._answer

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.abandon(time.monotonic() + 5.0)
            self._process = None
