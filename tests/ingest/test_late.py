"""Messages about processes that have ended: stored, and kept off the page."""

from __future__ import annotations

import os
from typing import Any

import pytest
from ingest.conftest import Answer, read
from msgspec.structs import replace
from wire_messages import WALL, FakeSession

from trackside.wire import Pushes, TrainingAlert, TrainingEvent
from trackside_daemon.detectors.run_watch import RunWatch
from trackside_daemon.ingest.connection import Connection
from trackside_daemon.model.records import USER_ALERT, BatchIngested, Event, Record, RunState, SessionOpened


def receive(desk: Any, frames: list[bytes]) -> tuple[list[list[bytes]], list[Record]]:
    """Receive a message; return the answers and the records for the history."""
    answers, batches = desk.sessions.receive(Connection(b"peer", os.getuid()), frames, desk.house.now)
    desk.house.accept(batches)
    desk.receipts += [batch.receipt for batch in batches if batch.receipt is not None]
    return answers, [record for batch in batches for record in batch.records]


def greet(desk: Any, session: FakeSession, **more: Any) -> list[Record]:
    return receive(desk, session.frames("hello", replace(session.hello(), late=True, **more)))[1]


def opened_attempts(desk: Any, session: FakeSession) -> list[int]:
    """Return the attempt of each record that opens a session."""
    found = (one.session for one in desk.house.records if isinstance(one, SessionOpened))
    return [one.attempt for one in found if one.id == session.id]


def test_late_values_are_stored_and_not_on_the_page(desk: Any) -> None:
    session = FakeSession()
    (opened,) = greet(desk, session)
    assert isinstance(opened, SessionOpened)
    _, (accepted,) = receive(desk, session.batch(1, {"loss": 0.5}))
    assert isinstance(accepted, BatchIngested)
    assert len(accepted.columns) == 1
    assert accepted.late
    _, records = receive(desk, session.frames("bye", session.bye("failed"), 2))
    assert [type(record) for record in records] == [BatchIngested, Event, RunState]
    assert records[2] == RunState(session.identity.run, 0, "failed", records[2].cause, records[2].ended, late=True)  # type: ignore[arg-type, union-attr]
    assert desk.house.has("train") == {"run_info", "state", "end_timestamp_seconds"}
    assert desk.house.runs_in("failed") == ["train"]
    assert desk.commit() == [Answer("ack", 1), Answer("ack", 2)]


def test_what_its_clients_have_dropped_is_on_the_page_by_rank(desk: Any) -> None:
    for rank, dropped in ((0, 7), (1, 0), (0, 5)):
        session = FakeSession(rank=rank, world=2, local_world=2)
        greet(desk, session)
        bye = session.bye()
        receive(desk, session.frames("bye", replace(bye, totals=replace(bye.totals, dropped=dropped)), 1))
    assert desk.house.get("client_dropped_total", "train", "0") == 12
    assert desk.house.get("client_dropped_total", "train", "1") is None


def test_what_has_ended_long_ago_is_not_on_the_page_at_all(desk: Any) -> None:
    session = FakeSession()
    greet(desk, session)
    desk.house.after = 901.0
    receive(desk, session.frames("bye", session.bye("failed"), 1))
    assert desk.house.page() == {}


def test_a_run_of_the_same_name_takes_the_place_of_one_that_was_missed(desk: Any) -> None:
    gone, lives = FakeSession("gone"), FakeSession("lives")
    greet(desk, gone)
    receive(desk, gone.frames("bye", gone.bye("failed"), 1))
    desk.greet(lives)
    assert desk.house.runs_in("starting") == ["train"]
    assert desk.house.runs_in("failed") == []
    late = FakeSession("late")
    greet(desk, late)
    receive(desk, late.frames("bye", late.bye("failed"), 1))
    assert desk.house.runs_in("failed") == [], "nor does one that lives give way"


def test_of_several_ranks_that_were_missed_the_worst_end_is_the_run_s(desk: Any) -> None:
    for rank, status in enumerate(("finished", "failed", "finished")):
        session = FakeSession(rank=rank, world=3, local_world=3)
        greet(desk, session)
        receive(desk, session.frames("bye", session.bye(status), 1))
    assert desk.house.runs_in("failed") == ["train"]
    assert len({one.labels for one in desk.house.page() if one.family == "end_timestamp_seconds"}) == 3


def test_a_block_that_cannot_be_read_is_refused_though_it_is_late(desk: Any) -> None:
    session = FakeSession()
    greet(desk, session)
    pushes = session.pushes({"loss": 0.5})
    pushes.blocks[0].values = b"x"
    receive(desk, session.frames("batch", pushes, 1))
    assert desk.commit() == [Answer("nack", 1, "block")]


@pytest.mark.parametrize(
    ("past", "started", "attempt"),
    [(None, 0, 0), ((2, None), 0, 2), ((2, WALL + 50), 0, 2), ((2, WALL - 50), 0, 3)],
)
def test_a_session_that_is_late_belongs_to_the_attempt_that_it_overlaps(
    desk: Any, past: tuple[int, float | None] | None, started: int, attempt: int
) -> None:
    session = FakeSession()
    if past is not None:
        desk.past[session.identity.run] = past
    (opened,) = greet(desk, session, started=round((WALL + started) * 1e9))
    assert isinstance(opened, SessionOpened)
    assert opened.session.attempt == attempt


def test_the_clock_of_what_is_late_is_not_compared_with_now(desk: Any) -> None:
    session = FakeSession(boot="another")
    hello = session.hello()
    (opened,) = greet(desk, session, clock=replace(hello.clock, wall=hello.clock.wall - 10**15))
    assert isinstance(opened, SessionOpened)
    assert opened.offset == 0.0


def test_before_the_first_message_it_is_known_what_will_be_late(desk: Any) -> None:
    gone, lives = FakeSession(), FakeSession()
    for batch in desk.sessions.open_spooled({gone.id: gone.hello()}, desk.house.now):
        desk.house.accept([batch])
        (opened,) = batch.records
        desk.past[opened.hello.identity.run] = (opened.session.attempt, opened.hello.clock.wall / 1e9)
    desk.greet(lives)
    assert opened_attempts(desk, lives) == [1]
    assert greet(desk, gone) == [], "reported once"


def test_a_client_that_lives_though_its_spool_was_opened_continues_with_its_attempt(desk: Any) -> None:
    session = FakeSession()
    for batch in desk.sessions.open_spooled({session.id: session.hello()}, desk.house.now):
        desk.house.accept([batch])
        (opened,) = batch.records
        desk.past[opened.hello.identity.run] = (opened.session.attempt, opened.hello.clock.wall / 1e9)
    desk.greet(session)
    assert set(opened_attempts(desk, session)) == {0}
    assert not [one for one in desk.house.records if isinstance(one, Event) and one.kind == "run_restarted"]


def test_events_and_alerts_come_with_their_batch_in_this_machine_s_time(desk: Any) -> None:
    session = FakeSession()
    desk.greet(session)
    pushes: Pushes = session.pushes({"loss": 0.5}, step=7)
    at = pushes.clock.monotonic - 10**9
    pushes.events = [TrainingEvent("checkpoint", at, 7, '{"bytes": 3}'), TrainingEvent("odd", at, None, "[1]")]
    pushes.alerts = [TrainingAlert("stuck", at, "for long", "critical", 7)]
    _, records = receive(desk, session.frames("batch", pushes, 1))
    first, second, raised = (one for one in records if isinstance(one, Event))
    assert (first.kind, first.step, first.fields, first.rank) == ("checkpoint", 7, {"bytes": 3}, 0)
    assert first.time == pytest.approx(pushes.clock.wall / 1e9 - 1)
    assert second.fields == {"text": "[1]"}
    assert (raised.kind, raised.step, raised.rank) == (USER_ALERT, 7, 0)
    assert raised.fields == {"title": "stuck", "severity": "critical", "text": "for long"}
    assert raised.time == first.time


def test_a_batch_of_a_minute_ago_counts_and_is_no_news(desk: Any) -> None:
    session = FakeSession()
    desk.greet(session)
    desk.house.after = 61.0
    receive(desk, session.frames("batch", session.pushes({"loss": 0.5}, step=1, pushes=5), 1))
    assert desk.house.get("client_pushes_total") == 5
    assert desk.house.get("loss") is None


def test_the_alert_of_a_rank_that_died_without_a_daemon_has_its_cause(desk: Any) -> None:
    session, watch, found = FakeSession(), RunWatch(), []
    bye = replace(session.bye("failed"), cause="exit status 1: no data")
    for frames in (session.frames("hello", replace(session.hello(), late=True)), session.frames("bye", bye, 1)):
        for batch in desk.sessions.receive(Connection(b"peer", os.getuid()), frames, desk.house.now).batches:
            found += [one for one in watch.accept(batch) if one.alert == "TrainingProcessDied"]
    assert [one.summary for one in found] == ["rank 0 of run train died: exit status 1: no data"]


def test_the_spool_of_a_session_without_a_known_user_continues_it(desk: Any) -> None:
    """A client over TCP without a key leaves files of its user."""
    session = FakeSession()
    desk.house.accept(
        desk.sessions.receive(Connection(b"tcp"), session.frames("hello", session.hello()), desk.house.now).batches
    )
    greet(desk, session)
    _, (accepted,) = receive(desk, session.batch(1, {"loss": 0.5}))
    assert isinstance(accepted, BatchIngested)
    assert accepted.session.run == session.identity.run


def test_a_spool_that_continues_the_session_of_another_user_is_refused_for_ever(desk: Any) -> None:
    session = FakeSession()
    hello = session.hello()
    desk.sessions.receive(Connection(b"other", os.getuid() + 1), session.frames("hello", hello), desk.house.now)
    for late, expected in ((False, []), (True, [Answer("nack", 0, "owner")])):
        answers, records = receive(desk, session.frames("hello", replace(hello, late=late)))
        assert ([read(answer, b"peer") for answer in answers], records) == (expected, [])
