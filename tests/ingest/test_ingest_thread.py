"""The thread that owns the socket, with real sockets on both sides."""

from __future__ import annotations

import os
import sqlite3
import threading
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from processes import DEADLINE, eventually
from served_sockets import ServedSocket
from wire_messages import Client, FakeSession, clock

from trackside.wire import MESSAGE_BYTES, Heartbeat, Totals
from trackside_daemon.history.read.attempts import StoredSession
from trackside_daemon.history.record.store import RecordStore
from trackside_daemon.history.record.trimming import Bounds
from trackside_daemon.history.recorder import HistoryRecorder
from trackside_daemon.ingest.client_sessions import ClientSessions
from trackside_daemon.ingest.ingest_thread import IngestThread
from trackside_daemon.ingest.push_socket import PushSocket
from trackside_daemon.ingest.requests import IngestRequests
from trackside_daemon.ingest.worker_handle import WorkerHandle
from trackside_daemon.model.families import daemon
from trackside_daemon.model.state import State
from trackside_daemon.pipeline.pipeline import PUSHES_WAITING, Pipeline
from trackside_daemon.training.admission import PageLimits
from trackside_daemon.training.runs import Runs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trackside_daemon.ingest.client_session import Consequences
    from trackside_daemon.ingest.connection import Connection
    from trackside_daemon.model.metric import Batch


class SlowState(State):
    """A state whose updates block while *go_on* is cleared."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()
        self.go_on.set()

    def update(self, batch: Batch) -> None:
        assert self.go_on.wait(DEADLINE)
        super().update(batch)


class CountedSessions(ClientSessions):
    """Sessions that count what they do.

    Attributes:
        accepted: The number of messages that are to be acknowledged.
        forgotten: How often all sessions have to greet again.
        owners: The owner of each message.
    """

    accepted = forgotten = 0
    owners: ClassVar[list[str]] = []

    def receive(self, connection: Connection, *args: Any, **more: Any) -> Consequences:
        self.owners.append(connection.owner)
        found = super().receive(connection, *args, **more)
        self.accepted += sum(batch.receipt is not None for batch in found.batches)
        return found

    def forget(self, *args: Any) -> None:
        super().forget(*args)
        self.forgotten += 1


class Ingest:
    """Socket, sessions, pipeline, state and history, as the daemon puts them together."""

    def __init__(self, place: Path, endpoint: str = "") -> None:
        bound = ServedSocket([endpoint or f"ipc://{place}/push.sock"])
        (self.endpoint,) = bound.endpoints
        self._close_socket = bound.close
        self.state = SlowState()
        self.requests = IngestRequests()
        self.history = HistoryRecorder(
            place, Bounds(0), acknowledge=self.requests.acknowledge, request_resend=self.requests.restart
        )
        self.sessions = CountedSessions(
            Runs(PageLimits(), 60.0, last_attempt=self.history.last_attempt), self.history.session
        )
        self.pipeline = Pipeline(self.state, self.history)
        self.server = IngestThread(
            bound.worker,
            self.sessions,
            self.pipeline.push,
            lambda: self.pipeline.has_room() and not self.is_stuck,
            lambda: self.history.writer.stuck or self.is_stuck,
            requests=self.requests,
        )
        self.is_stuck = False
        self.history.start()
        self.pipeline.start()
        self.server.start()
        self.stopped = False

    def stop(self) -> None:
        if not self.stopped:
            self.stopped = True
            self.server.stop()
            self.pipeline.stop()
            self.history.stop()
            self.server.close()
            self._close_socket()
            self.requests.close()
            self.history.close()

    def losses(self) -> list[float]:
        found = (rows for rows in self.state.snapshot(0.0) if rows.metric.name == "trackside_training_loss")
        return [value for rows in found for value in rows.values]  # type: ignore[misc]  # gauges are floats

    def refused(self) -> dict[tuple[str, ...], Any]:
        return {labels: value for labels, value in self.state.values(0.0, daemon.INGEST_REJECTED)[0].items() if value}


@pytest.fixture
def ingest(place: Path) -> Iterator[Ingest]:
    made = Ingest(place)
    yield made
    made.state.go_on.set()
    made.stop()


@pytest.fixture
def connect(ingest: Ingest) -> Iterator[Callable[[], Client]]:
    clients: list[Client] = []

    def make() -> Client:
        clients.append(Client(ingest.endpoint))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def test_a_push_is_accepted_shown_and_acknowledged(ingest: Ingest, connect: Callable[[], Client]) -> None:
    client, session = connect(), FakeSession()
    client.greet(session)
    for number in range(1, 101):
        client.send(*session.batch(number))
    client.await_ack(100)
    assert ingest.losses() == [100.0]


def test_several_clients_are_answered_each_on_its_own_connection(connect: Callable[[], Client]) -> None:
    talks = [(connect(), FakeSession(str(index), name=str(index))) for index in range(5)]
    for client, session in talks:
        client.greet(session)
    for number in (1, 2, 3):
        for client, session in talks:
            client.send(*session.batch(number))
    for client, _ in talks:
        client.await_ack(3)


def test_a_full_pipeline_is_not_read_and_nothing_is_lost(ingest: Ingest, connect: Callable[[], Client]) -> None:
    client, session = connect(), FakeSession()
    client.greet(session)
    ingest.state.go_on.clear()
    total = 3 * PUSHES_WAITING
    for number in range(1, total + 1):
        client.send(*session.batch(number))
    eventually(lambda: not ingest.pipeline.has_room())
    accepted = ingest.sessions.accepted
    assert accepted <= PUSHES_WAITING
    client.send(*FakeSession().frames("beat", Heartbeat(session.hello().clock)))
    assert client.socket.poll(50) == 0, "what comes now is left to ZeroMQ and to the client"
    assert ingest.sessions.accepted == accepted
    ingest.state.go_on.set()
    received: list[tuple[str, int]] = []
    while ("ack", total) not in received or ("hello?", 0) not in received:
        received.append(client.receive())
    acks = [number for kind, number in received if kind == "ack"]
    assert acks == sorted(set(acks))
    assert ingest.losses() == [float(total)]


def test_while_nothing_can_be_written_greetings_and_beats_are_read_and_numbered_messages_left(
    ingest: Ingest, connect: Callable[[], Client]
) -> None:
    client, session = connect(), FakeSession()
    ingest.is_stuck = True
    client.greet(session)
    client.send(*session.batch(1))
    client.send(*session.frames("beat", Heartbeat(clock(), 0, Totals(pushes=5), {"loss": 5.0}, 5)))
    client.greet(session)  # after the beat, so that it has been read
    eventually(lambda: ingest.losses() == [5.0])
    assert ingest.sessions.accepted == 0
    ingest.is_stuck = False
    client.send(*session.batch(1))
    assert client.receive() == ("hello?", 0), "the history has not received it"
    client.greet(session)
    client.send(*session.batch(1))
    assert client.receive() == ("ack", 1)


def test_after_the_file_was_damaged_all_that_was_not_acknowledged_comes_again(
    ingest: Ingest, connect: Callable[[], Client], monkeypatch: pytest.MonkeyPatch, place: Path
) -> None:
    def damaged(*_: Any) -> None:
        monkeypatch.undo()
        raise sqlite3.DatabaseError("database disk image is malformed")

    client, session = connect(), FakeSession()
    client.greet(session)
    client.send(*session.batch(1))
    assert client.receive() == ("ack", 1)
    monkeypatch.setattr(RecordStore, "apply", damaged)
    client.send(*session.batch(2))
    eventually(lambda: ingest.sessions.forgotten)
    client.send(*session.batch(3))
    while (answer := client.receive()) != ("hello?", 0):
        assert answer == ("ack", 2), "the writer writes it again, into the new file"
    client.send(*session.frames("hello", session.hello(acked=1)))
    kind, committed = client.receive()
    assert (kind, committed in {1, 2}) == ("welcome", True)
    for number in range(committed + 1, 4):
        client.send(*session.batch(number))
    client.await_ack(3, first=committed)
    assert ingest.history.session(session.id) == StoredSession(3, 0, owner=f"uid:{os.getuid()}", run="id-1")
    assert [one.name for one in place.glob("history.db.damaged-*")], "the old file is kept"


def test_a_client_goes_on_with_the_next_daemon_and_nothing_is_accepted_twice(
    ingest: Ingest, connect: Callable[[], Client], place: Path
) -> None:
    client, session = connect(), FakeSession()
    client.greet(session)
    for number in (1, 2, 3):
        client.send(*session.batch(number))
    client.await_ack(3)
    ingest.stop()
    again = Ingest(place)
    try:
        client.send(*session.frames("hello", session.hello(acked=1)))  # two of the answers were lost
        assert client.receive() == ("welcome", 3)
        client.send(*session.batch(3))
        assert client.receive() == ("ack", 3)
        client.send(*session.batch(4))
        assert client.receive() == ("ack", 4)
        written = {sample.metric.name: sample.value for sample in again.history.writer.samples()}
        assert written["trackside_history_samples_total"] == 1, "the number 4 alone was written"
    finally:
        again.stop()


def test_a_stop_in_the_midst_acknowledges_all_that_it_took(ingest: Ingest, connect: Callable[[], Client]) -> None:
    client, session = connect(), FakeSession()
    client.greet(session)
    ingest.state.go_on.clear()
    for number in range(1, 51):
        client.send(*session.batch(number))
    eventually(lambda: ingest.sessions.accepted == 50)
    stopper = threading.Thread(target=ingest.stop)
    stopper.start()
    ingest.state.go_on.set()
    client.await_ack(50)
    stopper.join()


def test_a_stop_with_a_full_pipeline_ends(ingest: Ingest, connect: Callable[[], Client]) -> None:
    client, session = connect(), FakeSession()
    client.greet(session)
    ingest.state.go_on.clear()
    for number in range(1, 3 * PUSHES_WAITING):
        client.send(*session.batch(number))
    eventually(lambda: not ingest.pipeline.has_room())
    stopper = threading.Thread(target=ingest.stop)
    stopper.start()
    ingest.state.go_on.set()
    stopper.join(DEADLINE)
    assert not stopper.is_alive()


def test_a_client_that_vanishes_delays_no_other(ingest: Ingest, connect: Callable[[], Client]) -> None:
    gone, session = Client(ingest.endpoint), FakeSession("gone")
    gone.greet(session)
    for number in range(1, 51):
        gone.send(*session.batch(number))
    gone.close()
    other = FakeSession("other", name="other")
    client = connect()
    client.greet(other)
    client.send(*other.batch(1))
    assert client.receive() == ("ack", 1)


def test_a_client_that_never_listens_delays_no_other(ingest: Ingest, connect: Callable[[], Client]) -> None:
    deaf, loud = connect(), FakeSession("deaf")
    deaf.greet(loud)
    beat = FakeSession().frames("beat", Heartbeat(loud.hello().clock))
    for _ in range(5000):  # each is answered hello?, which nobody reads
        deaf.send(*beat)
    client, session = connect(), FakeSession("other", name="other")
    client.greet(session)
    client.send(*session.batch(1))
    assert client.receive() == ("ack", 1)


def test_nonsense_is_counted_and_the_connection_continues(ingest: Ingest, connect: Callable[[], Client]) -> None:
    client, session = connect(), FakeSession()
    client.greet(session)
    client.send(b"")
    client.send(b"nonsense", b"", b"", b"")
    client.send(*session.batch(1)[:2], bytes(MESSAGE_BYTES + 1))
    assert client.receive() == ("nack", 1)
    client.send(*session.batch(2))
    assert client.receive() == ("ack", 2)
    eventually(lambda: ingest.refused() == {("frames",): 2.0, ("size",): 1.0})


def test_a_frame_beyond_all_measure_costs_its_sender_the_connection_and_no_other(
    ingest: Ingest, connect: Callable[[], Client]
) -> None:
    client, session = connect(), FakeSession()
    client.greet(session)
    rude = connect()
    rude.send(b"trackside/1", b"", bytes(3 * MESSAGE_BYTES))
    client.send(*session.batch(1))
    assert client.receive() == ("ack", 1)
    assert ingest.refused() == {}


def test_ticks_go_on_without_any_message(place: Path) -> None:
    ticks = threading.Semaphore(0)

    class Ticking(ClientSessions):
        def tick(self, now: Any) -> list[Batch]:
            ticks.release()
            return super().tick(now)

    bound = PushSocket([f"ipc://{place}/push.sock"])
    server = IngestThread(
        WorkerHandle(bound),
        Ticking(Runs(PageLimits(), 60.0)),
        lambda _: None,
        lambda: True,
        requests=(requests := IngestRequests()),
    )
    server.start()
    try:
        assert all(ticks.acquire(timeout=DEADLINE) for _ in range(2)), "the first is at once"
    finally:
        server.stop()
        server.close()
        bound.close()
        requests.close()


def test_a_server_that_never_started_can_be_closed(place: Path) -> None:
    bound = PushSocket([f"ipc://{place}/push.sock"])
    server = IngestThread(
        WorkerHandle(bound),
        ClientSessions(Runs(PageLimits(), 60.0)),
        lambda _: None,
        lambda: True,
        requests=(requests := IngestRequests()),
    )
    server.close()
    bound.close()
    requests.close()
    assert not (place / "push.sock").exists()


@pytest.mark.parametrize(("endpoint", "owner"), [("", f"uid:{os.getuid()}"), ("tcp://127.0.0.1:0", "")])
def test_a_connection_has_the_user_that_connected(
    place: Path, monkeypatch: pytest.MonkeyPatch, endpoint: str, owner: str
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place))
    owners: list[str] = []
    monkeypatch.setattr(CountedSessions, "owners", owners)
    ingest = Ingest(place, endpoint)
    client = Client(ingest.endpoint)
    try:
        client.greet(FakeSession())
    finally:
        client.close()
        ingest.stop()
    assert owners == [owner]
