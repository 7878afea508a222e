"""Whoever floods the history waits for himself: the others' batches are stored and acknowledged meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingest.conftest import SessionsHarness
from wire_messages import FakeSession

from trackside_daemon.history.database import Database
from trackside_daemon.history.record.queue import GROUP_BYTES
from trackside_daemon.history.record.trimming import Bounds
from trackside_daemon.history.record.writer import Writer
from trackside_daemon.ingest.connection import Connection

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

ALICE, BOB = Connection(b"\0alice", 50_001), Connection(b"\0bob", 50_002)


def test_batches_of_one_user_are_acknowledged_although_five_hundred_of_another_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trackside_daemon.history.record.queue.GROUP_BYTES", GROUP_BYTES // 256)
    desk, users = SessionsHarness(), {ALICE: FakeSession("alice"), BOB: FakeSession("bob")}
    commits: list[list[bytes]] = [[]]
    database = Database(tmp_path)
    writer = Writer(database, Bounds(0), acknowledge=lambda receipt: commits[-1].append(receipt.session))
    monkeypatch.setattr(writer, "_write_jsonl", lambda _: commits.append([]))

    def send(who: Connection, *kinds: str) -> None:
        session = users[who]
        for number, kind in enumerate(kinds):
            body = session.hello() if kind == "hello" else session.pushes({f"key{key}": 1.0 for key in range(64)})
            frames = session.frames(kind, body, number)
            for batch in desk.sessions.receive(who, list(frames), desk.house.now).batches:
                writer.put(batch.records, batch.receipt)

    send(ALICE, "hello", *["batch"] * 500)
    send(BOB, "hello", *["batch"] * 3)
    writer.start()
    writer.stop()
    database.close()
    assert sum(commit.count(users[BOB].id) for commit in commits[:2]) == 3
    assert sum(commit.count(users[ALICE].id) for commit in commits) == 500
    assert len(commits) > 10
