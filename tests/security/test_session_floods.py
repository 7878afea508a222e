"""Sessions cost nothing, so that limits are those of their owner: of new sessions, of lines in the log, of events."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ingest.conftest import SessionsHarness
from msgspec.structs import replace
from wire_messages import FakeSession, clock

from trackside.wire import HOOK_FAILED, TrainingAlert, TrainingEvent
from trackside_daemon.ingest.connection import Connection
from trackside_daemon.ingest.messages import EVENTS_BURST, SESSIONS_BURST, TEXT_BYTES, MessageLimits
from trackside_daemon.model.families.daemon import INGEST_REJECTED
from trackside_daemon.model.records import USER_ALERT, Event
from trackside_daemon.training.admission import NEW_RUNS_BURST

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pytest

MALLORY, ALICE = Connection(b"mallory", 61003), Connection(b"alice", 61002)
LINES = 4 * NEW_RUNS_BURST + 3  # of a hook, and of the begin and the end of an attempt; and what is refused


def receive(desk: SessionsHarness, connection: Connection, frames: list[bytes]) -> list[list[bytes]]:
    answers, batches = desk.sessions.receive(connection, frames, desk.house.now)
    desk.house.accept(batches)
    return answers


def greets(desk: SessionsHarness, connection: Connection, session: FakeSession) -> bool:
    return bool(receive(desk, connection, session.frames("hello", session.hello())))


def with_events(session: FakeSession, number: int, events: Sequence[TrainingEvent]) -> list[bytes]:
    pushes = session.pushes({"loss": 1.0})
    alerts = [TrainingAlert("title", clock().monotonic, "text")]
    return session.frames("batch", replace(pushes, events=list(events), alerts=alerts), number)


def stored(desk: SessionsHarness) -> list[Event]:
    return [one for one in desk.house.records if isinstance(one, Event)]


def test_sessions_of_one_owner_write_few_lines_and_few_events(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    desk = SessionsHarness(MessageLimits(event_bytes=1e6))
    failed = TrainingEvent(HOOK_FAILED, clock().monotonic, 1, json.dumps({"hook": "h", "error": "x" * 6000}))
    for _ in range(300):
        session = FakeSession()
        greets(desk, MALLORY, session)
        assert not receive(desk, MALLORY, with_events(session, 1, [failed] * 32))  # its rows are stored
        receive(desk, MALLORY, session.frames("bye", session.bye(), 2))
    assert len(caplog.messages) <= LINES
    assert sum(len(repr(one.fields)) for one in stored(desk)) < 1.2e6
    assert "more than 977 KiB of events at once" in caplog.text
    assert desk.counts(INGEST_REJECTED)["rate"] >= 290
    before = len(stored(desk))
    session = FakeSession("id-2")
    greets(desk, ALICE, session)
    receive(desk, ALICE, with_events(session, 1, [failed]))
    assert [one.kind for one in stored(desk)[before:] if one.run == "id-2"][-2:] == [HOOK_FAILED, USER_ALERT]
    desk.house.after = 60.0
    session = FakeSession()
    greets(desk, MALLORY, session)
    receive(desk, MALLORY, with_events(session, 1, [failed]))
    assert stored(desk)[-1].kind == USER_ALERT


def test_new_sessions_have_a_rate_for_each_owner_and_known_ones_none() -> None:
    desk = SessionsHarness(MessageLimits(sessions=64.0))
    ranks = [FakeSession(rank=rank, world=64) for rank in range(70)]
    assert [greets(desk, MALLORY, session) for session in ranks] == [True] * 64 + [False] * 6
    assert greets(desk, MALLORY, ranks[0])
    assert greets(desk, ALICE, FakeSession("id-2"))
    assert desk.counts(INGEST_REJECTED) == {"rate": 6.0}
    desk.house.after = 1.0
    assert [greets(desk, MALLORY, session) for session in ranks[64:]] == [True] * 6


def test_a_job_of_1024_ranks_starts_fails_and_restarts_at_once(count: Callable[[int, int], int]) -> None:
    number = count(64, 1024)
    share = number / 1024  # what so many ranks have of the limits
    desk = SessionsHarness(MessageLimits(sessions=SESSIONS_BURST * share, event_bytes=EVENTS_BURST * share))
    traceback = TrainingEvent("exception", clock().monotonic, 1, json.dumps({"traceback": "x" * 16_000}))
    for attempt in range(3):
        ranks = [FakeSession(rank=rank, world=number, attempt=attempt) for rank in range(number)]
        assert all(greets(desk, ALICE, session) for session in ranks)
        assert not any(receive(desk, ALICE, with_events(session, 1, [traceback])) for session in ranks)
    assert sum(one.kind == "exception" for one in stored(desk)) == 3 * number
    assert desk.counts(INGEST_REJECTED) == {}


def test_texts_that_are_slow_to_search_for_secrets_keep_no_other_owner_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = MessageLimits()
    desk = SessionsHarness(limits)
    spent, searched = [0.0], []

    def search(text: str) -> dict[str, str]:
        spent[0] += 0.75
        searched.append(text)
        return {"text": text}

    monkeypatch.setattr("trackside_daemon.ingest.messages._fields", search)
    limits.spent = lambda: spent[0]
    slow = TrainingEvent("slow", clock().monotonic, 1, "pwd a=a")
    mallory, other, alice = FakeSession(), FakeSession(), FakeSession("id-2")
    greets(desk, MALLORY, mallory)
    greets(desk, MALLORY, other)
    greets(desk, ALICE, alice)
    assert not receive(desk, MALLORY, with_events(mallory, 1, [slow]))
    assert not receive(desk, MALLORY, with_events(mallory, 2, [slow]))
    assert receive(desk, MALLORY, with_events(mallory, 3, [slow])), "an answer at once: it has to come again"
    assert receive(desk, MALLORY, with_events(other, 1, [slow]))
    assert not receive(desk, MALLORY, mallory.batch(3)), "rows go on"
    assert not receive(desk, ALICE, with_events(alice, 1, [slow]))
    assert len(searched) == 3
    desk.house.after = 6.0
    assert not receive(desk, MALLORY, with_events(other, 1, [slow]))
    assert len(searched) == 4


def test_a_batch_has_a_bounded_size_of_texts() -> None:
    desk = SessionsHarness()
    session = FakeSession()
    greets(desk, MALLORY, session)
    before = len(stored(desk))
    for number, (kind, text) in enumerate((("k", "x" * TEXT_BYTES), ("k" * TEXT_BYTES, "x")), 1):
        receive(desk, MALLORY, with_events(session, number, [TrainingEvent(kind, clock().monotonic, 1, text)]))
    assert len(stored(desk)) == before
    assert desk.counts(INGEST_REJECTED) == {"size": 2.0}
