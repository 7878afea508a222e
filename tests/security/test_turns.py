"""A user that floods the history waits alone: the others' batches are stored and acknowledged meanwhile."""

from __future__ import annotations

from dataclasses import replace as replace_record
from typing import TYPE_CHECKING

from histories import ingested, opened
from ingest.conftest import SessionsHarness
from msgspec.structs import replace
from wire_messages import FakeSession

from trackside.wire import TrainingEvent
from trackside_daemon.history.database import Database
from trackside_daemon.history.record.queue import GROUP_BYTES, Queue
from trackside_daemon.history.record.trimming import Bounds
from trackside_daemon.history.record.writer import Writer
from trackside_daemon.ingest.connection import Connection
from trackside_daemon.ingest.messages import TEXT_BYTES
from trackside_daemon.model.records import Event
from trackside_daemon.model.session import Owner

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

ALICE, BOB = Connection(b"\0alice", 50_001), Connection(b"\0bob", 50_002)


def test_batches_of_one_user_are_acknowledged_although_five_hundred_of_another_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, users = SessionsHarness(), {ALICE: FakeSession("alice"), BOB: FakeSession("bob")}
    commits: list[list[bytes]] = [[]]
    database = Database(tmp_path)
    queue = Queue(group=GROUP_BYTES // 256)
    writer = Writer(database, Bounds(0), acknowledge=lambda receipt: commits[-1].append(receipt.session), queue=queue)
    monkeypatch.setattr(writer, "_write_jsonl", lambda _: commits.append([]))

    def send(speaker: Connection, *kinds: str) -> None:
        session = users[speaker]
        for number, kind in enumerate(kinds):
            body = session.hello() if kind == "hello" else session.pushes({f"key{key}": 1.0 for key in range(64)})
            frames = session.frames(kind, body, number)
            for batch in desk.sessions.receive(speaker, list(frames), desk.house.now).batches:
                writer.put(batch.records, batch.receipt)

    send(ALICE, "hello", *["batch"] * 500)
    send(BOB, "hello", *["batch"] * 3)
    writer.start()
    writer.stop()
    database.close()
    assert sum(commit.count(users[BOB].id) for commit in commits[:2]) == 3
    assert sum(commit.count(users[ALICE].id) for commit in commits) == 500
    assert len(commits) > 10


def test_a_batch_with_texts_that_no_client_sends_is_refused_and_its_session_continues() -> None:
    desk, speaker = SessionsHarness(), FakeSession("run")
    desk.greet(speaker)
    for number, size in ((1, TEXT_BYTES + 1), (2, 100)):
        many = "[" + "0," * (size // 2) + "0]"
        body = replace(speaker.pushes({"loss": 1.0}), events=[TrainingEvent("any", 1, 1, many)])
        desk.receive(*speaker.frames("batch", body, number))
    assert [answer[:2] for answer in desk.commit()] == [("nack", 1), ("ack", 2)]


def test_events_and_last_values_count_as_much_as_they_need_in_memory() -> None:
    found, one = Queue(), opened("run")
    found.put([Event("run", 0, 1.0, "any", fields={}, size=1 << 20)], 1)
    found.put([replace_record(one, hello=replace(one.hello, last={str(number): 1.0 for number in range(1 << 17)}))], 2)
    assert not found.has_room


def test_a_run_that_is_forgotten_does_not_come_before_those_of_others() -> None:
    queue = Queue(owners=3)

    def opens(run: str, owner: str) -> None:
        queue.put([replace_record(opened(run), owner=Owner(owner))], None)

    opens("bob", "uid:2")
    for run in ("first", "second", "third"):
        opens(run, "uid:1")
        queue.put([ingested("bob", [(1, 1, {"loss": 1.0})])], None)
        queue.get(0)
    for run in ("first", "bob"):
        for number in range(3):
            queue.put([ingested(run, [(1, 1, {"loss": 1.0})])], (run, number))
    group, _ = queue.get(5.0)
    assert [item.receipt[0] for item in group[:4]] == ["first", "bob"] * 2
