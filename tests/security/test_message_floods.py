"""A user that floods the push socket waits alone: a message of another precedes what he has waiting."""

from __future__ import annotations

import select
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import zmq
from processes import DEADLINE, eventually
from served_sockets import ServedSocket

from trackside_daemon.ingest.worker.worker import WAITING_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CONNECTIONS = 150
SIZE = 2 * WAITING_BYTES // CONNECTIONS // 2


@pytest.fixture
def served(place: Path) -> Iterator[ServedSocket]:
    """A push socket with two endpoints, so that this test can be two peers: a user and an address."""
    one = ServedSocket([f"ipc://{place}/push.sock", "tcp://127.0.0.1:*"])
    yield one
    one.close()


@pytest.fixture
def connect(served: ServedSocket) -> Iterator[Callable[[int], zmq.Socket[bytes]]]:
    context = zmq.Context()
    sockets: list[zmq.Socket[bytes]] = []

    def make(endpoint: int) -> zmq.Socket[bytes]:
        sockets.append(context.socket(zmq.DEALER))
        sockets[-1].linger = 0
        sockets[-1].connect(served.endpoints[endpoint])
        return sockets[-1]

    yield make
    for one in sockets:
        one.close()
    context.term()


def rests(served: ServedSocket) -> Callable[[], bool]:
    """Return a function that returns whether the worker has used no time since its last call."""
    file, before = Path(f"/proc/{served.worker.pid}/stat"), [""]

    def is_idle() -> bool:
        used = file.read_text().rpartition(")")[2].split()[11:13]
        before.append(str(used))
        return len(before) > 4 and len(set(before[-4:])) == 1

    return is_idle


def refused(served: ServedSocket) -> int:
    """Read all that has arrived; return the number of messages that were dropped."""
    while served.worker.receive() is not None:
        pass
    return served.worker.refused["backlog"]


def test_a_message_precedes_those_that_a_flood_has_waiting(
    served: ServedSocket, connect: Callable[[int], zmq.Socket[bytes]]
) -> None:
    honest, flood = connect(0), [connect(1) for _ in range(CONNECTIONS)]
    honest.send(b"hello")
    for one in flood:
        one.send(b"hello")
    for _ in range(1 + CONNECTIONS):
        served.receive()
    for _ in range(4):
        for one in flood:
            one.send(bytes(SIZE))
    eventually(rests(served))
    honest.send(b"honest")
    eventually(rests(served))
    before = 0
    while served.receive()[1] != [b"honest"]:
        before += 1
    assert before <= CONNECTIONS / 4
    eventually(lambda: refused(served) > 0)
    assert served.worker.restarts == 0


def test_a_user_that_is_alone_waits_and_has_no_message_dropped(
    served: ServedSocket, connect: Callable[[int], zmq.Socket[bytes]]
) -> None:
    some = [connect(0) for _ in range(CONNECTIONS)]
    for number in range(4):
        for one in some:
            one.send(b"%d" % number + bytes(SIZE))
    found: dict[bytes, list[int]] = {}
    while sum(map(len, found.values())) < 4 * CONNECTIONS:
        message = served.worker.receive()
        if message is None:
            assert select.select([served.worker], [], [], DEADLINE)[0]
            continue
        connection, frames = message
        found.setdefault(connection.id, []).append(frames[0][0] - ord("0"))
    assert list(found.values()) == [[*range(4)]] * CONNECTIONS
    assert served.worker.refused["backlog"] == 0
