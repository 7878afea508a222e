"""The queue of the ingest worker: whose message is next, and how much may wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from processes import eventually

from trackside_daemon.ingest.worker.worker import FLUSH_BYTES, WAITING_BYTES, MessageQueue
from trackside_daemon.ingest.worker_channel import Channel, RecordKind, pair

if TYPE_CHECKING:
    from collections.abc import Iterator


class Passed:
    """A queue, and what has come out of its channel."""

    def __init__(self) -> None:
        self.ours, theirs = map(Channel, pair())
        self._channel = theirs
        self.queue = MessageQueue(theirs)
        self.names: list[bytes] = []

    def send(self, owner: str, name: bytes, size: int = FLUSH_BYTES) -> None:
        self.queue.add(owner, RecordKind.MESSAGE, [name, bytes(size)])

    def read(self, number: int) -> list[bytes]:
        """Return the first parts of so many records in all."""

        def arrived() -> bool:
            self.queue.flush()
            self.names += [record.parts[0] for record in self.ours.receive()]
            return len(self.names) >= number

        eventually(arrived)
        return self.names

    def close(self) -> None:
        self.ours.close()
        self._channel.close()


@pytest.fixture
def passed() -> Iterator[Passed]:
    found = Passed()
    yield found
    found.close()


def test_the_message_of_an_owner_precedes_the_flood_of_another(passed: Passed) -> None:
    for number in range(100):
        passed.send("alice", b"alice%d" % number)
    passed.queue.flush()
    passed.send("bob", b"bob")
    names = passed.read(101)
    sent = names.index(b"bob")
    assert sent < 50, "what the channel already has is in front of it, and no more"
    del names[sent]
    assert names == [b"alice%d" % number for number in range(100)]


def test_owners_get_equal_shares_in_bytes(passed: Passed) -> None:
    for _ in range(10):
        passed.send("alice", b"alice", 8 * FLUSH_BYTES)
    for _ in range(40):
        passed.send("bob", b"bob", FLUSH_BYTES)
    names = passed.read(50)
    assert 12 <= names[:25].count(b"bob") <= 24
    assert names[:25].count(b"alice") >= 1
    assert names[-1] == b"alice"


def test_a_flood_has_an_end_and_leaves_room_for_others(passed: Passed) -> None:
    parts = [b"alice", bytes(1 << 20)]
    accepted = 0
    while passed.queue.has_room("alice", parts):
        passed.queue.add("alice", RecordKind.MESSAGE, parts)
        accepted += 1
    assert accepted == WAITING_BYTES // len(parts[1]) - 1
    assert passed.queue.has_room("bob", [bytes(2 * WAITING_BYTES)]), (
        "one message of each owner is accepted, whatever its size"
    )
    passed.send("bob", b"bob", 1)
    assert passed.queue.has_room("bob", parts)
    assert not passed.queue.has_room("bob", [bytes(WAITING_BYTES // 2)])


def test_a_connection_that_ends_is_reported_after_its_messages(passed: Passed) -> None:
    passed.queue.add("alice", RecordKind.CONNECTED, [b"connected"])
    passed.send("alice", b"message")
    passed.queue.add("alice", RecordKind.DISCONNECTED, [b"ended"])
    assert passed.read(3) == [b"connected", b"message", b"ended"]
