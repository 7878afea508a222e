"""An ingest without a socket that receives messages as the daemon's does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from msgspec.structs import replace
from served_sockets import ServedSocket
from wire_messages import RunsHarness

from trackside.environment.identity import boot_id
from trackside.wire import Nack, Refused, decode_body, open_envelope
from trackside_daemon.ingest.client_sessions import ClientSessions
from trackside_daemon.ingest.connection import Connection
from trackside_daemon.ingest.greeting import MAX_SESSIONS
from trackside_daemon.ingest.run_owners import RunOwners
from trackside_daemon.model.session import process_of
from trackside_daemon.training.end_state import Exit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wire_messages import FakeSession

    from trackside_daemon.history.read.attempts import StoredSession
    from trackside_daemon.ingest.client_session import Receipt
    from trackside_daemon.ingest.messages import MessageLimits
    from trackside_daemon.model.metric import Metric

PEER = b"\0peer"
BOOT = boot_id(Path("/proc"))


class Answer(NamedTuple):
    """An answer to a client."""

    kind: str
    number: int = 0
    reason: str = ""


class SessionsHarness:
    """`ClientSessions` with a `RunsHarness`; a test decides when accepted messages are committed.

    Attributes:
        kept: The sessions in the history.
        past: The last attempt of each run in the history.
        pid: The pid that a connection reports for the process that greets; None for no answer.
        receipts: Receipts of messages that are accepted and not yet committed.
    """

    def __init__(self, messages: MessageLimits | None = None, *, most: int = MAX_SESSIONS, **limits: int) -> None:
        self.kept: dict[bytes, StoredSession] = {}
        self.past: dict[str, tuple[int, float | None]] = {}
        self.house = RunsHarness(past=self.past.get, **limits)  # type: ignore[arg-type]  # limits are numbers
        self.pid: int | None = None
        owners = RunOwners(spooled=lambda _: os.getuid())
        self.sessions = ClientSessions(
            self.house.runs, self.kept.get, BOOT, lambda *_: self.pid, owners=owners, limits=messages, most=most
        )
        self.receipts: list[Receipt] = []

    def receive(self, *frames: bytes, peer: bytes = PEER, room: bool = True) -> list[Answer]:
        """Receive a message; return the immediate answers."""
        answers, batches = self.sessions.receive(Connection(peer, os.getuid()), list(frames), self.house.now, room=room)
        self.house.accept(batches)
        self.receipts += [batch.receipt for batch in batches if batch.receipt is not None]
        return [read(answer, peer) for answer in answers]

    def commit(self, number: int | None = None) -> list[Answer]:
        """Commit the first *number* messages, or all of them; return the answers."""
        done, self.receipts = self.receipts[:number], self.receipts[number:] if number is not None else []
        answers = [self.sessions.committed(receipt) for receipt in done]
        return [read(one, one[0]) for one in answers if one is not None]

    def greet(self, session: FakeSession, acked: int = 0) -> list[Answer]:
        """Receive the hello of *session*."""
        return self.receive(*session.frames("hello", session.hello(self.house.after, acked=acked)))

    def exit(self, session: FakeSession, code: int | None, pid: int) -> None:
        """End the process of *session*, whose pid on this machine is *pid*."""
        process = process_of(replace(session.identity, pid=pid))
        self.house.accept(self.sessions.exited(process, Exit(code), self.house.now.wall, self.house.now))

    def tick(self) -> None:
        """Run the tick of a second at the current time."""
        self.house.accept(self.sessions.tick(self.house.now))

    def count(self, metric: Metric, *labels: str) -> float:
        """Return a counter of the ingest after a tick."""
        self.tick()
        found = self.house.state.values(self.house.now.monotonic, metric)[0]
        return found[labels]  # type: ignore[return-value]  # counters have no distributions

    def counts(self, metric: Metric) -> dict[str, float]:
        """Return the counters of a family with one label, without those that are 0."""
        self.tick()
        found = self.house.state.values(self.house.now.monotonic, metric)[0]
        return {labels[0]: value for labels, value in found.items() if value}  # type: ignore[misc]  # the same


def read(frames: list[bytes], peer: bytes = PEER) -> Answer:
    """Decode an answer, which must be addressed to *peer* and have the wire format."""
    assert frames[0] == peer
    envelope = open_envelope(frames[1:])
    body = decode_body(envelope.kind, frames[3])
    reason = body.reason if isinstance(body, Nack) else str(body.reads) if isinstance(body, Refused) else ""
    return Answer(envelope.kind, envelope.number, reason)


@pytest.fixture
def desk() -> SessionsHarness:
    return SessionsHarness()


@pytest.fixture
def served(place: Path) -> Iterator[ServedSocket]:
    """A push socket that an ingest worker serves."""
    one = ServedSocket([f"ipc://{place}/push.sock"])
    yield one
    one.close()
