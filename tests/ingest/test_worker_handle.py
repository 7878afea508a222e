"""The worker and the daemon's side of it: limits, ends, and what passes between them."""

from __future__ import annotations

import itertools
import os
import resource
import signal
import socket
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import zmq
import zmtp
from processes import eventually

from trackside_daemon.ingest.endpoint import EndpointError
from trackside_daemon.ingest.push_socket import PushSocket
from trackside_daemon.ingest.worker import connections
from trackside_daemon.ingest.worker import worker as worker_module
from trackside_daemon.ingest.worker.connections import Connections
from trackside_daemon.ingest.worker.worker import IngestWorker, ServeError
from trackside_daemon.ingest.worker_channel import Channel, ChannelClosed, RecordKind, pair
from trackside_daemon.ingest.worker_handle import MAX_PEERS, WorkerHandle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from served_sockets import ServedSocket

    from trackside_daemon.ingest.worker_channel import ChannelRecord


def child() -> int:
    """Return the pid of the worker, the child of this process that runs its module."""

    def read() -> list[str]:
        pids = {pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()}
        return [pid for pid in pids if b"ingest.worker\0" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    (found,) = eventually(read)
    return int(found)


@pytest.fixture
def channels() -> Iterator[tuple[Channel, Channel]]:
    ours, theirs = map(Channel, pair())
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.fixture
def connect(served: ServedSocket) -> Iterator[Callable[[], zmq.Socket[bytes]]]:
    context = zmq.Context()
    sockets: list[zmq.Socket[bytes]] = []

    def make() -> zmq.Socket[bytes]:
        sockets.append(context.socket(zmq.DEALER))
        sockets[-1].linger = 0
        sockets[-1].connect(served.endpoints[0])
        return sockets[-1]

    yield make
    for one in sockets:
        one.close()
    context.term()


def received(channel: Channel, sender: Channel, number: int) -> list[ChannelRecord]:
    """Send what waits, and return so many records."""
    records: list[ChannelRecord] = []

    def arrived() -> bool:
        sender.flush()
        records.extend(channel.receive())
        return len(records) >= number

    eventually(arrived)
    return records


def test_records_arrive_as_they_were_sent(channels: tuple[Channel, Channel]) -> None:
    ours, theirs = channels
    parts = [[b""], [b"a", b"", b"b" * 70_000], [], [bytes(5 << 20)], [b"c"] * 200]
    for some in parts:
        ours.add(RecordKind.MESSAGE, some)
    records = received(theirs, ours, len(parts))
    assert [record.parts for record in records] == parts
    assert {record.descriptor for record in records} == {-1}


def test_a_descriptor_arrives_with_its_own_record(channels: tuple[Channel, Channel]) -> None:
    ours, theirs = channels
    files = [os.memfd_create(f"file{number}") for number in range(3)]
    names = [f"/memfd:file{number} (deleted)" for number in range(3)]
    ours.add(RecordKind.CONNECTED, [b"without"])
    for number, file in enumerate(files):
        ours.add(RecordKind.CONNECTED, [b"%d" % number], file)
        ours.add(RecordKind.MESSAGE, [b"between"])
    records = received(theirs, ours, 7)
    found = {record.parts[0]: record.descriptor for record in records if record.descriptor >= 0}
    assert [str(Path(f"/proc/self/fd/{found[b'%d' % number]}").readlink()) for number in range(3)] == names
    for descriptor in found.values():
        os.close(descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.close(files[0])


def test_an_unread_channel_keeps_what_it_has_and_waits_for_no_reader(channels: tuple[Channel, Channel]) -> None:
    ours, theirs = channels
    for number in range(100):
        ours.add(RecordKind.MESSAGE, [b"%d" % number, bytes(100_000)])
    ours.flush()
    assert ours.unsent > 0
    records = received(theirs, ours, 100)
    assert [record.parts[0] for record in records] == [b"%d" % number for number in range(100)]
    assert ours.unsent == 0


def test_a_record_beyond_all_measure_closes_the_channel() -> None:
    ours, theirs = pair()
    with ours, theirs:
        ours.send(bytes([2, 0, 1]) + (2**32 - 1).to_bytes(4, "little"))
        with pytest.raises(ChannelClosed):
            Channel(theirs).receive()


def test_the_end_of_the_other_process_is_noticed(channels: tuple[Channel, Channel]) -> None:
    ours, theirs = channels
    ours.close()
    with pytest.raises(ChannelClosed):
        theirs.receive()
    theirs.add(RecordKind.PING)
    with pytest.raises(ChannelClosed):
        theirs.flush()


def test_messages_and_answers_pass_with_their_sender(
    served: ServedSocket, connect: Callable[[], zmq.Socket[bytes]]
) -> None:
    client = connect()
    client.send_multipart([b"a", b"", b"c"])
    connection, frames = served.receive()
    assert (connection.uid, connection.owner, frames) == (os.getuid(), f"uid:{os.getuid()}", [b"a", b"", b"c"])
    assert connection.peer is not None
    assert connection.peer.pid == os.getpid()
    served.answer(connection, [b"answer"])
    assert client.poll(30_000)
    assert client.recv_multipart() == [b"answer"]


def test_a_client_cannot_name_its_own_user(served: ServedSocket) -> None:
    claims = {"Peer-Address": b"localhost:12345:1:1", "User-Id": b"root", "__fd": b"0"}
    with socket.socket(socket.AF_UNIX) as forger:
        forger.connect(served.endpoints[0].removeprefix("ipc://"))
        zmtp.shake_hands(forger, **claims)
        zmtp.send(forger, [b"hello"])
        connection, _ = served.receive()
    assert (connection.uid, connection.key) == (os.getuid(), "")


def test_of_a_message_with_too_many_frames_one_too_many_is_passed_on(
    served: ServedSocket, connect: Callable[[], zmq.Socket[bytes]]
) -> None:
    client = connect()
    client.send_multipart([b"%d" % number for number in range(1000)])
    client.send_multipart([b"next"])
    assert served.receive()[1] == [b"0", b"1", b"2", b"3"]
    assert served.receive()[1] == [b"next"]


def test_a_peer_of_an_older_protocol_costs_nothing(
    served: ServedSocket, connect: Callable[[], zmq.Socket[bytes]]
) -> None:
    path = served.endpoints[0].removeprefix("ipc://")
    with socket.socket(socket.AF_UNIX) as old:
        old.connect(path)
        old.sendall(b"\x01\x00" + b"\x06\x00hello" * 100)  # ZMTP 1.0: an empty identity, and messages
        # An answer would have no way back. Those of others still arrive, from the same process.
        connect().send(b"next")
        assert served.receive()[1] == [b"next"]
    assert served.worker.restarts == 0


def test_a_connection_that_ends_is_forgotten(served: ServedSocket, connect: Callable[[], zmq.Socket[bytes]]) -> None:
    client = connect()
    client.send(b"hello")
    connection, _ = served.receive()
    peer = connection.peer
    assert peer is not None
    client.close()
    eventually(lambda: served.worker.receive() is None and peer.pidfd == -1)


def test_no_more_pidfds_than_a_few_wait_for_a_hello(
    served: ServedSocket, connect: Callable[[], zmq.Socket[bytes]]
) -> None:
    connect().send(b"no hello")
    peers = [served.receive()[0].peer]
    for _ in range(MAX_PEERS):
        connect().send(b"no hello")
    peers += [served.receive()[0].peer for _ in range(MAX_PEERS)]
    assert [peer is not None and peer.pidfd >= 0 for peer in peers] == [False, *[True] * MAX_PEERS]


def test_after_the_end_of_a_worker_the_same_connection_continues_with_the_next(
    served: ServedSocket, connect: Callable[[], zmq.Socket[bytes]], caplog: pytest.LogCaptureFixture
) -> None:
    client = connect()
    client.send(b"before")
    before, _ = served.receive()
    os.kill(child(), signal.SIGKILL)
    eventually(lambda: served.worker.receive() is None and served.worker.restarts == 1)
    served.worker.send([before.id, b"lost"])  # to nobody
    served.worker.flush()
    assert served.worker.fileno() == -1

    def answered() -> bool:
        served.worker.revive()
        client.send(b"after")
        message = served.worker.receive()
        if message is not None:
            served.answer(message[0], [b"answer"])
        return bool(client.poll(100))

    eventually(answered)
    assert client.recv() == b"answer"
    reason = "it was killed: Killed; another one starts, and clients resend what was not acknowledged"
    assert caplog.messages == [f"the ingest worker has ended: {reason}"]


def test_a_worker_that_hangs_is_killed(served: ServedSocket) -> None:
    served.worker.hang_seconds = 0.5

    def ticked() -> bool:
        served.worker.tick(reads=True)
        served.worker.flush()
        served.worker.receive()
        return served.worker.restarts == 1

    for _ in range(10):
        assert not ticked(), "it answers"
    os.kill(child(), signal.SIGSTOP)
    eventually(ticked)


def test_a_worker_that_is_not_read_is_not_mistaken_for_one_that_hangs(served: ServedSocket) -> None:
    served.worker.hang_seconds = 0.0
    for _ in range(10):
        served.worker.tick(reads=False)
        served.worker.flush()
    assert served.worker.receive() is None
    assert served.worker.restarts == 0


def test_a_worker_with_messages_that_wait_is_not_mistaken_for_one_that_hangs(
    served: ServedSocket, connect: Callable[[], zmq.Socket[bytes]]
) -> None:
    client = connect()
    for number in range(200):
        client.send(b"%d" % number)
    while served.receive() and not served.worker.waiting:
        pass
    served.worker.hang_seconds = 0.0
    for _ in range(10):
        served.worker.tick(reads=True)
        served.worker.flush()
    client.send(b"last")
    while served.receive()[1] != [b"last"]:
        pass
    assert served.worker.restarts == 0


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSEGV])
def test_a_worker_that_is_killed_while_it_starts_is_replaced(
    place: Path, caplog: pytest.LogCaptureFixture, sent: signal.Signals
) -> None:
    push_socket = PushSocket([f"ipc://{place}/push.sock"])
    worker = WorkerHandle(push_socket)
    try:
        worker.start()
        os.kill(child(), sent)
        worker.wait_ready()
        assert worker.restarts == 1
        (line,) = [one.getMessage() for one in caplog.records]
        assert line.startswith("the ingest worker has ended: it was killed: ")
    finally:
        worker.close()
        push_socket.close()


def test_a_worker_that_is_killed_again_and_again_while_it_starts_is_an_error(place: Path) -> None:
    push_socket = PushSocket([f"ipc://{place}/push.sock"])
    worker = WorkerHandle(push_socket, start_seconds=0.0)
    try:
        worker.start()
        os.kill(child(), signal.SIGKILL)
        eventually(lambda: worker.receive() is None and worker.restarts == 1)
        with pytest.raises(EndpointError, match="the ingest worker has ended: it was killed"):
            worker.wait_ready()
    finally:
        worker.close()
        push_socket.close()


def test_a_worker_that_cannot_serve_is_an_error_of_one_line(place: Path) -> None:
    bound = PushSocket([f"ipc://{place}/push.sock"])
    (listener,) = bound.listeners.values()
    bound.listeners = {"ipc:///" + "x" * 130: listener}
    worker = WorkerHandle(bound)
    worker.start()
    try:
        with pytest.raises(
            EndpointError,
            match=r"^the ingest worker has ended: it exited with status 1: ipc:///x+: the push",
        ):
            worker.wait_ready()
    finally:
        worker.close()
        bound.close()


def test_a_zeromq_that_is_too_old_is_an_error_of_one_line(
    channels: tuple[Channel, Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zmq, "zmq_version_info", lambda: (4, 3, 4))
    with pytest.raises(ServeError, match=r"^pyzmq [\d.]+ has ZeroMQ .*: pip install --upgrade pyzmq$"):
        IngestWorker(channels[0], {}, "", 1)


class TestConnections:
    """Pairs of sockets stand for connections; `_peer` distinguishes peers."""

    @pytest.fixture
    def peers(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], int]]:
        """A function that opens a connection of a peer, and returns its descriptor."""
        pairs: dict[int, tuple[str, socket.socket, socket.socket]] = {}
        monkeypatch.setattr(connections, "_peer", lambda descriptor: pairs[descriptor][0])

        def make(peer: str) -> int:
            here, there = socket.socketpair()
            there.setblocking(False)
            pairs[here.fileno()] = peer, here, there
            return here.fileno()

        self.pairs = pairs
        yield make
        for _, here, there in pairs.values():
            here.close()
            there.close()

    def shut(self, descriptor: int) -> bool:
        """Return whether a connection was shut down."""
        try:
            return self.pairs[descriptor][2].recv(1) == b""
        except BlockingIOError:
            return False

    def test_of_the_peer_that_has_most_the_silent_one_goes(self, peers: Callable[[str], int]) -> None:
        made = Connections(4)
        honest, speaks, silent, later = peers("1000"), peers("1001"), peers("1001"), peers("1001")
        assert not any(made.accepted(one) for one in (honest, speaks, silent, later))
        made.spoke(speaks)
        assert made.accepted(peers("1000")) is True
        assert [self.shut(one) for one in (honest, speaks, silent, later)] == [False, False, True, False]

    def test_of_those_that_speak_the_one_that_has_been_silent_for_longest_goes(
        self, peers: Callable[[str], int]
    ) -> None:
        made = Connections(2)
        first, second = peers("1000"), peers("1000")
        for one in (first, second):
            made.accepted(one)
            made.spoke(one)
        made.spoke(first)
        third = peers("1000")
        made.accepted(third)
        assert [self.shut(one) for one in (first, second, third)] == [False, True, False]

    def test_a_flood_of_silent_ones_evicts_none_that_speaks_after_the_first(self, peers: Callable[[str], int]) -> None:
        made = Connections(3)
        speaking = [peers("1000") for _ in range(3)]
        for one in speaking:
            made.accepted(one)
            made.spoke(one)
        flood = [peers("1000") for _ in range(20)]
        for one in flood:
            made.accepted(one)
        assert [self.shut(one) for one in speaking] == [True, False, False]
        assert [self.shut(one) for one in flood] == [True] * 19 + [False]

    def test_a_flood_of_one_user_evicts_itself(self, peers: Callable[[str], int]) -> None:
        made = Connections(10)
        honest = [peers("1000") for _ in range(4)]
        for one in honest:
            made.accepted(one)
            made.spoke(one)
        flood = [peers("1001") for _ in range(50)]
        for one in flood:
            made.accepted(one)
            made.spoke(one)
        assert not any(self.shut(one) for one in honest)
        assert sum(self.shut(one) for one in flood) == 44

    def test_for_lack_of_memory_those_without_a_message_go_and_then_the_half_that_is_silent_for_longest(
        self, peers: Callable[[str], int]
    ) -> None:
        made = Connections(10)
        speaking, mute = [peers("1000") for _ in range(4)], [peers("1000") for _ in range(2)]
        for one in (*speaking, *mute):
            made.accepted(one)
        for one in reversed(speaking):
            made.spoke(one)
        assert made.shed(also_silent=False) == 2
        assert [self.shut(one) for one in (*speaking, *mute)] == [False] * 4 + [True] * 2
        assert [made.shed(also_silent=True) for _ in range(4)] == [2, 1, 1, 0]
        assert len(made) == 0

    def test_a_worker_that_is_large_closes_connections_until_it_is_not(
        self, peers: Callable[[str], int], channels: tuple[Channel, Channel], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ours, theirs = channels
        one, sizes = IngestWorker(theirs, {}, "", 1), [worker_module.MEMORY_BYTES + 1] * 2 + [0] * 2
        monkeypatch.setattr(worker_module, "_resident", lambda: sizes.pop(0))
        monkeypatch.setattr("time.monotonic", map(float, itertools.count()).__next__)  # a look at each call
        speaking, mute = [peers("1000") for _ in range(2)], peers("1000")
        for descriptor in (*speaking, mute):
            one._connections.accepted(descriptor)
        for descriptor in speaking:
            one._connections.spoke(descriptor)
        left = []
        for _ in range(4):
            one._limit_memory()
            left.append(len(one._connections))
        monkeypatch.undo()
        assert left == [2, 1, 1, 1]
        kinds = [record.kind for record in received(ours, theirs, 4)]
        assert (kinds.count(RecordKind.REFUSED), kinds.count(RecordKind.LOG)) == (2, 1)
        one.close()

    def test_a_closed_connection_makes_room(self, peers: Callable[[str], int]) -> None:
        made = Connections(1)
        first, second = peers("1000"), peers("1000")
        made.accepted(first)
        made.closed(first)
        made.closed(first)
        assert first not in made
        assert made.accepted(second) is False
        made.spoke(12345)
        assert 12345 not in made


def test_the_peer_of_a_connection_is_its_user_or_its_address() -> None:
    with ExitStack() as stack:
        of_user = [stack.enter_context(one) for one in socket.socketpair()]
        server = stack.enter_context(socket.create_server(("", 0)))
        connect = partial(socket.create_connection, server.getsockname())
        local, other = (
            [stack.enter_context(connect(source_address=(address, 0))) for _ in range(2)]
            for address in ("127.0.0.1", "127.0.0.2")
        )
        here = [stack.enter_context(server.accept()[0]) for _ in range(4)]
        same = [of_user, local, other, here[:2]]
        for ends in (*same, [of_user[0], local[0]], [here[0], here[2]]):
            made = Connections(9)
            for end in ends:
                made.accepted(end.fileno())
            assert made.has_several_peers is (ends not in same)
        number = of_user[0].fileno()
    made.accepted(number)  # closed already, so that its peer is unknown
    assert number in made


def test_without_descriptors_to_spare_few_connections_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, most in (
        (1024, 256),
        (1, 1),
        (10**6, worker_module.MAX_CONNECTIONS),
        (resource.RLIM_INFINITY, worker_module.MAX_CONNECTIONS),
    ):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limit=limit: (limit, limit))
        assert worker_module.most_connections() == most
