"""A push socket that a worker serves, and its messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from processes import eventually

from trackside_daemon.ingest.push_socket import PushSocket
from trackside_daemon.ingest.worker_handle import WorkerHandle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trackside_daemon.ingest.connection import Connection


class ServedSocket:
    """A push socket and its worker, for tests without the thread that reads it.

    Attributes:
        endpoints: Where clients connect.
        worker: The worker.
    """

    def __init__(self, endpoints: Sequence[str], *, keys: str = "") -> None:
        self._bound = PushSocket(endpoints, keys=keys)
        self.endpoints = self._bound.endpoints
        self.token = self._bound.token
        self.worker = WorkerHandle(self._bound)
        self.worker.start()
        self.worker.wait_ready()

    def receive(self) -> tuple[Connection, list[bytes]]:
        """Wait for the next message."""
        message = eventually(self.worker.receive)
        assert message is not None
        return message

    def answer(self, connection: Connection, frames: Sequence[bytes]) -> None:
        """Send an answer."""
        self.worker.send([connection.id, *frames])
        self.worker.flush()

    def refused(self, reason: str) -> int:
        """Return how many connections were refused for a reason; no message may have arrived."""
        assert self.worker.receive() is None
        return self.worker.refused[reason]

    def close(self) -> None:
        """End the worker, and close the socket."""
        self.worker.close()
        self._bound.close()
