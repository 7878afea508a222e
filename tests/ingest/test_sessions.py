"""The protocol: greetings, the order of accepted messages, and the answers."""

from __future__ import annotations

import gc
import os
import weakref
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from ingest.conftest import PEER, SessionsHarness
from msgspec.structs import replace
from wire_messages import WALL, FakeSession, clock

from trackside.wire import MESSAGE_BYTES, REASONS, Bye, Envelope, Heartbeat, Pushes, Skip, Totals, encode
from trackside_daemon.history.directory import UnreadableError
from trackside_daemon.history.read.attempts import StoredSession
from trackside_daemon.ingest.connection import Connection
from trackside_daemon.ingest.messages import KINDS, MAX_LOGGED
from trackside_daemon.model.families import daemon
from trackside_daemon.model.records import BatchIngested, Event, RunState, SessionOpened

if TYPE_CHECKING:
    from collections.abc import Callable


def answer(kind: str, number: int = 0, reason: str = "") -> tuple[str, int, str]:
    return (kind, number, reason)


@pytest.fixture
def fake_session(desk: Any) -> FakeSession:
    """A session that has been greeted."""
    speaker = FakeSession()
    desk.greet(speaker)
    return speaker


def bad_body(fake_session: FakeSession, number: int, kind: str = "batch") -> list[bytes]:
    return [*encode(Envelope(kind, fake_session.id, number))[:2], b"\xc1"]


def too_large(fake_session: FakeSession, number: int) -> list[bytes]:
    return [*fake_session.batch(number)[:2], bytes(MESSAGE_BYTES + 1)]


def bad_block(fake_session: FakeSession, number: int) -> list[bytes]:
    pushes = fake_session.pushes({"loss": 1.0})
    pushes.blocks[0].times = b""
    return fake_session.frames("batch", pushes, number)


def test_a_hello_is_welcomed_and_shows_the_run(desk: Any) -> None:
    assert desk.greet(FakeSession()) == [answer("welcome", 0)]
    assert desk.house.state_of() == "starting"


def test_a_welcome_after_a_restart_continues_where_the_last_daemon_ended(desk: Any) -> None:
    fake_session = FakeSession()
    assert desk.greet(fake_session, acked=41) == [answer("welcome", 41)]
    assert desk.receive(*fake_session.batch(42)) == []
    assert desk.commit() == [answer("ack", 42)]


def test_a_second_hello_is_answered_with_what_is_committed_and_not_what_is_only_accepted(
    desk: Any, fake_session: FakeSession
) -> None:
    for number in (1, 2, 3):
        desk.receive(*fake_session.batch(number))
    desk.commit(2)
    assert desk.greet(fake_session) == [answer("welcome", 2)]
    assert desk.receive(*fake_session.batch(3)) == [answer("ack", 2)], "taken already, committed not yet"
    assert desk.commit() == [answer("ack", 3)]


def test_nothing_of_a_session_without_a_hello_is_accepted(desk: Any) -> None:
    fake_session = FakeSession()
    for frames in (
        fake_session.batch(1),
        fake_session.skip(1, 3),
        fake_session.frames("bye", fake_session.bye(), 1),
        fake_session.frames("beat", Heartbeat(clock())),
    ):
        assert desk.receive(*frames) == [answer("hello?")]
    assert desk.receipts == []
    assert desk.house.page() == {}
    assert desk.counts(daemon.INGEST_MESSAGES) == {}


def test_a_bye_and_a_skip_are_acknowledged_like_a_batch(desk: Any, fake_session: FakeSession) -> None:
    desk.receive(*fake_session.skip(1, 3))
    desk.receive(*fake_session.frames("bye", fake_session.bye(), 4))
    assert desk.commit() == [answer("ack", 3), answer("ack", 4)]
    assert desk.house.state_of() == "finished"


def test_a_batch_that_was_accepted_already_is_dropped_and_acknowledged(desk: Any, fake_session: FakeSession) -> None:
    desk.receive(*fake_session.batch(1))
    desk.receive(*fake_session.batch(2))
    desk.commit()
    assert desk.receive(*fake_session.batch(1, {"loss": 9.0})) == [answer("ack", 2)]
    assert desk.house.get("loss") == 2.0
    assert desk.count(daemon.INGEST_DUPLICATES) == 1.0
    assert desk.counts(daemon.INGEST_MESSAGES) == {"hello": 1.0, "batch": 2.0}


def test_a_batch_that_comes_too_early_is_asked_for_again(desk: Any, fake_session: FakeSession) -> None:
    desk.receive(*fake_session.batch(1))
    desk.commit()
    assert desk.receive(*fake_session.batch(3)) == [answer("ack", 1)]
    assert desk.house.get("loss") == 1.0
    for number in (2, 3):
        desk.receive(*fake_session.batch(number))
    assert desk.commit() == [answer("ack", 2), answer("ack", 3)]
    assert desk.count(daemon.INGEST_GAPS) == 0.0


def test_a_skip_bridges_a_gap_that_is_counted(desk: Any, fake_session: FakeSession) -> None:
    desk.receive(*fake_session.batch(1))
    assert desk.receive(*fake_session.skip(2, 5)) == []
    desk.receive(*fake_session.batch(6))
    assert desk.commit() == [answer("ack", 1), answer("ack", 5), answer("ack", 6)]
    assert desk.count(daemon.INGEST_GAPS) == 4.0


def test_a_skip_that_begins_before_what_is_accepted_counts_only_what_is_missing(
    desk: Any, fake_session: FakeSession
) -> None:
    for number in (1, 2):
        desk.receive(*fake_session.batch(number))
    desk.receive(*fake_session.skip(1, 5))
    assert desk.count(daemon.INGEST_GAPS) == 3.0


def test_a_skip_that_begins_too_late_is_asked_for_again(desk: Any, fake_session: FakeSession) -> None:
    assert desk.receive(*fake_session.skip(3, 5)) == [answer("ack", 0)]
    assert desk.count(daemon.INGEST_GAPS) == 0.0


@pytest.mark.parametrize(("bad", "reason"), [(bad_body, "body"), (bad_block, "block"), (too_large, "size")])
def test_a_batch_that_cannot_be_read_is_refused_in_its_turn_and_its_neighbours_live(
    desk: Any, fake_session: FakeSession, bad: Callable[[FakeSession, int], list[bytes]], reason: str
) -> None:
    assert desk.receive(*fake_session.batch(1)) == []
    assert desk.receive(*bad(fake_session, 2)) == []
    assert desk.receive(*fake_session.batch(3)) == []
    assert desk.commit() == [answer("ack", 1), answer("nack", 2, reason), answer("ack", 3)]
    assert desk.counts(daemon.INGEST_REJECTED) == {reason: 1.0}
    assert desk.house.get("loss") == 3.0
    assert desk.receive(*bad(fake_session, 2)) == [answer("nack", 2, reason)], "the refusal is final"


def test_a_bad_batch_out_of_its_turn_is_not_even_decoded(desk: Any, fake_session: FakeSession) -> None:
    assert desk.receive(*bad_body(fake_session, 5)) == [answer("ack", 0)]
    assert desk.counts(daemon.INGEST_REJECTED) == {}


@pytest.mark.parametrize("kind", ["skip", "bye"])
def test_a_bad_skip_or_bye_is_refused_too(desk: Any, fake_session: FakeSession, kind: str) -> None:
    desk.receive(*bad_body(fake_session, 1, kind))
    desk.receive(*fake_session.batch(2))
    assert desk.commit() == [answer("nack", 1, "body"), answer("ack", 2)]


@pytest.mark.parametrize("kind", ["hello", "beat"])
def test_a_bad_hello_or_beat_is_only_counted(desk: Any, fake_session: FakeSession, kind: str) -> None:
    assert desk.receive(*bad_body(fake_session, 0, kind)) == []
    assert desk.counts(daemon.INGEST_REJECTED) == {"body": 1.0}


def test_a_beat_shows_that_the_rank_is_alive(desk: Any, fake_session: FakeSession) -> None:
    assert desk.receive(*fake_session.frames("beat", Heartbeat(clock()))) == []
    assert desk.counts(daemon.INGEST_MESSAGES) == {"hello": 1.0, "beat": 1.0}


@pytest.mark.parametrize("protocol", [b"trackside/0", b"trackside/2", b"trackside/99999", b"trackside/"])
def test_a_client_of_another_version_is_answered_with_the_supported_one(desk: Any, protocol: bytes) -> None:
    assert desk.receive(protocol, b"whatever") == [answer("refused", 0, "[1]")]
    assert desk.counts(daemon.INGEST_REJECTED) == {"version": 1.0}


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([], "frames"),
        ([b""], "frames"),
        ([b"GET / HTTP/1.1"], "frames"),
        ([b"trackside/1"], "frames"),
        ([b"trackside/1", b"", b"", b""], "frames"),
        ([b"trackside/1", b"", b""], "envelope"),
        ([b"trackside/1", msgspec.msgpack.encode(["batch", b"short", 1]), b""], "envelope"),
        ([b"trackside/1", msgspec.msgpack.encode(["batch", bytes(16), -1]), b""], "envelope"),
        ([b"trackside/1", msgspec.msgpack.encode(["sing", bytes(16), 1]), b""], "envelope"),
        ([b"trackside/1", msgspec.msgpack.encode(["ack", bytes(16), 1]), b""], "kind"),
        ([b"trackside/1", msgspec.msgpack.encode(["welcome", bytes(16), 1]), b""], "kind"),
        ([b"trackside/1", bytes(MESSAGE_BYTES + 1), b""], "size"),
    ],
)
def test_what_is_no_message_is_counted_by_its_reason_and_not_answered(
    desk: Any, frames: list[bytes], reason: str
) -> None:
    assert desk.receive(*frames) == []
    assert desk.counts(daemon.INGEST_REJECTED) == {reason: 1.0}


def test_all_counters_are_there_at_0_from_the_beginning(desk: Any) -> None:
    desk.house.accept(desk.sessions.tick(desk.house.now))
    messages, rejected, *others = desk.house.state.values(
        0.0, daemon.INGEST_MESSAGES, daemon.INGEST_REJECTED, daemon.INGEST_DUPLICATES, daemon.INGEST_GAPS
    )
    assert messages == {(kind,): 0.0 for kind in KINDS}
    assert rejected == {(reason,): 0.0 for reason in (*REASONS, "kind", "owner", "rate")}
    assert others == [{(): 0.0}, {(): 0.0}]


def test_sessions_do_not_mix(desk: Any) -> None:
    first, second = FakeSession("a", name="a"), FakeSession("b", name="b")
    for fake_session in (first, second):
        desk.greet(fake_session)
    for number in (1, 2):
        desk.receive(*first.batch(number))
    desk.receive(*second.batch(1))
    assert desk.commit() == [answer("ack", 1), answer("ack", 2), answer("ack", 1)]


def test_a_session_answers_to_the_connection_that_it_last_spoke_on(desk: Any, fake_session: FakeSession) -> None:
    desk.receive(*fake_session.batch(1), peer=b"\0old")
    desk.receive(*fake_session.batch(2), peer=b"\0new")
    answers = [desk.sessions.committed(receipt) for receipt in desk.receipts]
    assert [one[0] for one in answers] == [b"\0new", b"\0new"]


def test_a_hello_with_a_higher_sequence_number_than_this_daemon_s_goes_on_from_there(
    desk: Any, fake_session: FakeSession
) -> None:
    desk.receive(*fake_session.batch(1))
    assert desk.greet(fake_session, acked=10) == [answer("welcome", 10)]
    desk.receive(*fake_session.batch(11))
    assert desk.commit() == [answer("ack", 1), answer("ack", 11)]


def test_a_session_that_is_silent_for_an_hour_is_asked_for_a_hello(desk: Any, fake_session: FakeSession) -> None:
    desk.house.after = 3599.0
    desk.sessions.tick(desk.house.now)
    assert desk.receive(*fake_session.batch(1)) == []
    desk.commit()
    desk.house.after += 3601.0
    desk.sessions.tick(desk.house.now)
    assert desk.receive(*fake_session.batch(2)) == [answer("hello?")]
    assert desk.greet(fake_session, acked=1) == [answer("welcome", 1)]


def test_with_too_many_sessions_the_most_silent_one_is_forgotten(count: Callable[[int, int], int]) -> None:
    desk: Any = SessionsHarness(most=10)
    loyal, others = FakeSession("loyal"), []
    desk.greet(loyal)
    for number in range(1, count(100, 10_000)):
        desk.house.after += 0.01
        others.append(FakeSession())
        desk.greet(others[-1])
        assert desk.receive(*loyal.batch(number)) == []
    answers = [desk.receive(*one.frames("beat", Heartbeat(clock()))) for one in others]
    assert answers == [[answer("hello?")]] * (len(others) - 9) + [[]] * 9


def test_each_sender_is_logged_once_for_each_reason_and_not_for_ever(
    desk: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(600):
        for _ in range(2):
            desk.receive(b"trackside/9", peer=b"%d" % number)
            desk.receive(b"nonsense", peer=b"%d" % number)
    assert len(caplog.messages) == MAX_LOGGED
    assert caplog.messages[0] == (
        "a message was refused: version: got b'trackside/9', this side reads b'trackside/1';"
        " further ones from this sender are only counted"
    )
    assert desk.counts(daemon.INGEST_REJECTED) == {"version": 1200.0, "frames": 1200.0}


def test_a_session_over_the_limit_of_runs_is_acknowledged_all_the_same() -> None:
    desk: Any = SessionsHarness(runs=1)
    desk.greet(FakeSession("a"))
    fake_session = FakeSession("b", name="late")
    assert desk.greet(fake_session) == [answer("welcome")]
    assert desk.receive(*fake_session.batch(1)) == []
    assert desk.receive(*bad_block(fake_session, 2)) == []
    assert desk.commit() == [answer("ack", 1), answer("nack", 2, "block")]
    assert desk.house.has("late") == set()


def test_fields_of_a_later_version_are_passed_over(desk: Any, fake_session: FakeSession) -> None:
    frames = fake_session.batch(1)
    body = msgspec.msgpack.decode(frames[2])
    body["mood"] = {"good": True}
    body["totals"]["future"] = 1
    assert desk.receive(*frames[:2], msgspec.msgpack.encode(body)) == []
    assert desk.commit() == [answer("ack", 1)]


def test_numbers_at_the_end_of_their_range_are_accepted(desk: Any) -> None:
    last = 2**63 - 1
    fake_session = FakeSession()
    assert desk.greet(fake_session, acked=last - 1) == [answer("welcome", last - 1)]
    desk.receive(*fake_session.batch(last, step=1))
    assert desk.commit() == [answer("ack", last)]
    assert desk.receive(*fake_session.skip(1, last)) == [answer("ack", last)]


def test_a_hello_may_not_claim_less_than_nothing(desk: Any) -> None:
    fake_session = FakeSession()
    desk.greet(fake_session, acked=-5)
    desk.receive(*fake_session.batch(1))
    assert desk.commit() == [answer("ack", 1)]


def test_a_receipt_of_a_session_that_was_forgotten_is_forgotten_too() -> None:
    desk: Any = SessionsHarness(most=1)
    forgotten = FakeSession()
    desk.greet(forgotten)
    desk.receive(*forgotten.batch(1))
    desk.greet(FakeSession("other", name="other"))
    assert desk.commit() == []


def test_a_body_without_its_blocks_is_refused(desk: Any, fake_session: FakeSession) -> None:
    body = {"clock": {"wall": 1, "monotonic": 1}, "totals": {}}
    desk.receive(*fake_session.frames("batch", None, 1)[:2], msgspec.msgpack.encode(body))
    assert desk.commit() == [answer("nack", 1, "body")]


@pytest.mark.parametrize(
    "totals",
    [Totals(overhead=float("nan")), Totals(overhead=-1.0), Totals(samples=float("nan")), Totals(steps=-1)],
    ids=["nan seconds", "negative seconds", "nan samples", "negative steps"],
)
def test_totals_that_no_counter_may_have_are_refused(desk: Any, fake_session: FakeSession, totals: Totals) -> None:
    desk.receive(*fake_session.frames("batch", Pushes(clock(), totals, []), 1))
    assert desk.commit() == [answer("nack", 1, "body")]


def test_a_session_id_alone_does_not_let_a_stranger_change_the_run(desk: Any, fake_session: FakeSession) -> None:
    stranger = FakeSession("other", name="stranger")
    stranger.id = fake_session.id
    desk.greet(stranger)
    assert desk.house.has("stranger") == set()


def test_repeated_messages_grow_nothing(count: Callable[[int, int], int]) -> None:
    desk: Any = SessionsHarness(most=2)
    silent, fake_session = FakeSession("silent", name="silent"), FakeSession()
    desk.greet(silent)
    for _ in range(count(200, 20_000)):
        desk.greet(fake_session)
        desk.receive(*replace_session(fake_session.frames("beat", Heartbeat(clock()))))
    assert desk.receive(*silent.batch(1)) == [], "it would have been forgotten for another"
    assert len(list(desk.house.runs._sessions())) == 2


def replace_session(frames: list[bytes]) -> list[bytes]:
    """Return the message with the id of an unknown session."""
    envelope = msgspec.msgpack.decode(frames[1], type=Envelope)
    return [frames[0], msgspec.msgpack.encode(replace(envelope, session=os.urandom(16))), frames[2]]


def records(desk: Any, kind: type[Any]) -> list[Any]:
    """Return the records of one kind that went to the history."""
    return [record for record in desk.house.records if type(record) is kind]


def events(desk: Any) -> list[tuple[str, int, int | None]]:
    return [(one.kind, one.attempt, one.rank) for one in records(desk, Event)]


def standings(desk: Any) -> list[tuple[int, str, bool]]:
    """Return attempt, state, and whether it has ended, for each record of the run's state."""
    return [(one.attempt, one.state, one.ended is not None) for one in records(desk, RunState)]


def test_the_history_receives_a_session_before_what_it_pushed(desk: Any, fake_session: FakeSession) -> None:
    desk.receive(*fake_session.batch(1, {"loss": 2.5}, after=3.0))
    (opened,), (accepted,) = records(desk, SessionOpened), records(desk, BatchIngested)
    assert (opened.session.id, opened.session.name, opened.session.attempt, opened.time) == (
        fake_session.id,
        "train",
        0,
        WALL,
    )
    assert desk.house.records.index(opened) < desk.house.records.index(accepted)
    assert (accepted.session.id, accepted.number) == (fake_session.id, 1)
    (columns,) = accepted.columns
    assert columns.keys == ["loss"]
    assert columns.times[0] + accepted.shift == round((WALL + 3) * 1e9), "its time, as Unix time"


@pytest.mark.parametrize(("after", "late"), [(59.0, False), (61.0, True)])
def test_a_batch_of_a_minute_ago_is_marked_as_late(
    desk: Any, fake_session: FakeSession, *, after: float, late: bool
) -> None:
    desk.house.after = after
    fake_session.totals.phases = {"eval": 7.0}
    desk.receive(*fake_session.batch(1, after=0.0))
    (accepted,) = records(desk, BatchIngested)
    assert (accepted.late, accepted.phases) == (late, {"eval": 7.0})


def test_a_bye_and_a_skip_bring_what_was_spent_in_phases_after_the_last_push(
    desk: Any, fake_session: FakeSession
) -> None:
    answered = {}
    for number, kind in ((1, "batch"), (2, "skip"), (3, "bye")):
        fake_session.totals.phases = answered[number] = {"forward": float(number)}
        frames = {"batch": fake_session.batch, "skip": lambda number: fake_session.skip(number, number)}
        desk.receive(
            *(frames[kind](number) if kind in frames else fake_session.frames("bye", fake_session.bye(), number))
        )
    assert {one.number: one.phases for one in records(desk, BatchIngested)} == answered


@pytest.mark.parametrize(("boot", "offset"), [(None, 0.0), ("another", 7.0)])
def test_only_a_clock_of_another_machine_is_corrected(desk: Any, boot: str | None, offset: float) -> None:
    fake_session = FakeSession(**({} if boot is None else {"boot": boot}))
    desk.house.after = 7.0
    desk.receive(*fake_session.frames("hello", fake_session.hello(0.0)))
    desk.receive(*fake_session.batch(1))
    (opened,), (accepted,) = records(desk, SessionOpened), records(desk, BatchIngested)
    assert opened.offset == offset
    assert accepted.shift == round((WALL - 50 + offset) * 1e9)


def test_records_and_number_of_a_message_travel_together(desk: Any, fake_session: FakeSession) -> None:
    answered = {
        1: fake_session.batch(1),
        2: bad_body(fake_session, 2),
        4: fake_session.skip(3, 4),
        5: fake_session.frames("bye", fake_session.bye("failed"), 5),
    }
    for number, frames in answered.items():
        _, batches = desk.sessions.receive(Connection(b"peer", os.getuid()), frames, desk.house.now)
        (last,) = [batch for batch in batches if batch.receipt is not None]
        assert last is batches[-1], "other records come before the receipt"
        (accepted,) = [record for record in last.records if type(record) is BatchIngested]
        assert (accepted.number, last.receipt.number) == (number, number)
        assert bool(accepted.columns) is (number == 1)


def test_a_gap_is_an_event_of_its_rank(desk: Any) -> None:
    fake_session = FakeSession(rank=3, world=4, local_world=4)
    desk.greet(fake_session)
    desk.receive(*fake_session.batch(1))
    desk.receive(*fake_session.skip(2, 6))
    gap = records(desk, Event)[-1]
    assert (gap.kind, gap.rank, gap.run, dict(gap.fields)) == ("gap", 3, "id-1", {"batches": 5})
    desk.receive(*fake_session.frames("skip", Skip(7, fake_session.totals, 1200, (60, 99)), 8))
    assert dict(records(desk, Event)[-1].fields) == {"batches": 2, "values": 1200, "steps": "60 to 99"}


def test_a_session_of_an_earlier_daemon_goes_on_where_that_had_committed(desk: Any) -> None:
    fake_session = FakeSession()
    desk.kept[fake_session.id] = StoredSession(41, 3)
    desk.past["id-1"] = (3, None)
    assert desk.greet(fake_session, acked=39) == [answer("welcome", 41)]
    assert desk.receive(*fake_session.batch(40)) == [answer("ack", 41)], "it is in the history already"
    assert records(desk, BatchIngested) == []
    desk.receive(*fake_session.batch(42))
    assert desk.commit() == [answer("ack", 42)]
    assert [one.number for one in records(desk, BatchIngested)] == [42]
    assert [one.session.attempt for one in records(desk, SessionOpened)] == [3]
    assert attempts(desk) == ["3"]
    assert events(desk) == [], "it neither begins nor is restarted"


def test_a_session_that_was_forgotten_meanwhile_is_asked_of_the_history(desk: Any, fake_session: FakeSession) -> None:
    desk.receive(*fake_session.batch(1))
    desk.commit()
    desk.kept[fake_session.id] = StoredSession(1, 0)
    desk.sessions.forget()
    assert desk.greet(fake_session) == [answer("welcome", 1)]


def test_a_new_session_of_a_run_that_ended_under_an_earlier_daemon_is_a_new_attempt(desk: Any) -> None:
    desk.past["id-1"] = (4, 99.0)
    desk.greet(FakeSession())
    assert [one.session.attempt for one in records(desk, SessionOpened)] == [5]
    assert attempts(desk) == ["5"]
    assert events(desk) == [("run_restarted", 5, None)]


def test_a_new_session_of_a_run_that_lived_under_an_earlier_daemon_joins_it(desk: Any) -> None:
    desk.past["id-1"] = (4, None)
    desk.greet(FakeSession(rank=1, world=2, local_world=2))
    assert [one.session.attempt for one in records(desk, SessionOpened)] == [4]
    assert events(desk) == []


def test_a_launcher_that_counts_further_is_believed(desk: Any) -> None:
    desk.past["id-1"] = (4, 99.0)
    desk.greet(FakeSession(attempt=7))
    assert attempts(desk) == ["7"]


def test_a_session_of_an_attempt_before_the_one_that_runs_stays_in_its_own(desk: Any) -> None:
    late = FakeSession()
    desk.past["id-1"] = (0, 99.0)
    desk.greet(FakeSession())
    desk.kept[late.id] = StoredSession(5, 0)
    assert desk.greet(late) == [answer("welcome", 5)]
    desk.receive(*late.batch(6, {"loss": 9.0}))
    assert desk.commit() == [answer("ack", 6)]
    assert [one.session.attempt for one in records(desk, SessionOpened)] == [1, 0]
    assert desk.house.get("loss") is None
    assert attempts(desk) == ["1"]


def test_a_session_with_a_committed_but_unacknowledged_bye_does_not_begin_its_run_again(desk: Any) -> None:
    fake_session = FakeSession()
    desk.kept[fake_session.id] = StoredSession(9, 0, ended=True)
    desk.past["id-1"] = (0, 99.0)
    assert desk.greet(fake_session, acked=8) == [answer("welcome", 9)]
    assert desk.house.records == []
    assert desk.house.page() == {}


def test_a_session_that_speaks_on_after_its_rank_had_ended_is_shown_again(desk: Any) -> None:
    fake_session = FakeSession()
    desk.kept[fake_session.id] = StoredSession(9, 0, ended=True)
    desk.greet(fake_session)
    assert desk.receive(*fake_session.frames("beat", Heartbeat(clock()))) == [answer("hello?")]
    assert desk.greet(fake_session) == [answer("welcome", 9)]
    desk.receive(*fake_session.batch(10))
    assert desk.commit() == [answer("ack", 10)]
    assert desk.house.state_of() == "running"
    assert [one.session.attempt for one in records(desk, SessionOpened)] == [0]


def test_without_room_numbered_messages_are_left_and_greetings_and_beats_are_not(desk: Any) -> None:
    fake_session = FakeSession()
    assert desk.receive(*fake_session.frames("hello", fake_session.hello()), room=False) == [answer("welcome")]
    for frames in (
        fake_session.batch(1),
        fake_session.skip(1, 3),
        fake_session.frames("bye", fake_session.bye(), 1),
        bad_body(fake_session, 1),
    ):
        assert desk.receive(*frames, room=False) == []
    assert (desk.receipts, records(desk, BatchIngested)) == ([], [])
    assert desk.house.state_of() == "starting"
    assert desk.counts(daemon.INGEST_REJECTED) == {}
    stuck = Heartbeat(clock(9.0), 500_000_000, Totals(pushes=7, steps=7), {"loss": 0.5, "other": 3.0}, 7)
    assert desk.receive(*fake_session.frames("beat", stuck), room=False) == []
    assert (desk.house.get("loss"), desk.house.get("step"), desk.house.get("steps_total")) == (0.5, 7.0, 7.0)
    assert desk.house.get("value", "train", "0", "other") == 3.0
    assert desk.house.get("last_step_timestamp_seconds") == WALL + 8.5
    assert desk.receive(*FakeSession().frames("beat", stuck), room=False) == [answer("hello?")]
    assert desk.receive(*fake_session.batch(1)) == [answer("hello?")], "the history has not received it"
    assert records(desk, SessionOpened) == []
    desk.receive(*fake_session.frames("hello", fake_session.hello()))
    assert desk.receive(*fake_session.batch(1)) == []
    assert desk.commit() == [answer("ack", 1)]


def test_what_waits_for_the_history_is_accepted_once_though_its_client_greets_again_meanwhile(
    desk: Any, fake_session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First there is no room, and then the history cannot be read."""

    def unreadable(_: bytes) -> None:
        raise UnreadableError("the disk is full")

    desk.receive(*fake_session.batch(1))
    hello, other = fake_session.frames("hello", fake_session.hello()), b"\0other"
    assert desk.receive(*hello, peer=other, room=False) == [answer("welcome")]
    assert desk.receive(*fake_session.batch(1), peer=other) == [answer("hello?")]
    with monkeypatch.context() as patch:
        patch.setattr(desk.sessions._greetings, "_stored", unreadable)
        assert desk.receive(*hello, peer=other) == []
    assert desk.receive(*hello, peer=other) == [answer("welcome")]
    assert desk.receive(*fake_session.batch(1), peer=other) == [answer("ack")]
    assert len(desk.receipts) == 1


def test_a_session_that_opened_without_room_is_new_to_later_stages_once_there_is_room(desk: Any) -> None:
    fake_session = FakeSession()
    fake_session.totals = replace(fake_session.totals, paused=5.0)
    desk.receive(*fake_session.frames("hello", fake_session.hello()), room=False)
    fake_session.totals = replace(fake_session.totals, paused=7.0)
    desk.greet(fake_session)
    assert [record.again for record in records(desk, SessionOpened)] == [False]
    fake_session.totals = replace(fake_session.totals, paused=8.0)
    desk.receive(*fake_session.batch(1))
    assert [record.paused for record in records(desk, BatchIngested)] == [1.0]


def test_values_of_a_beat_are_not_undone_by_the_batches_that_come_later(desk: Any, fake_session: FakeSession) -> None:
    desk.receive(*fake_session.frames("beat", Heartbeat(clock(9.0), 0, Totals(pushes=7, steps=7), {"loss": 0.5}, 7)))
    desk.receive(*fake_session.batch(1, {"loss": 2.5}, after=1.0))
    assert (desk.house.get("loss"), desk.house.get("step"), desk.house.get("steps_total")) == (0.5, 7.0, 7.0)
    desk.receive(*fake_session.batch(2, {"loss": 0.25}, after=10.0, step=8, pushes=8, steps=8))
    assert (desk.house.get("loss"), desk.house.get("step"), desk.house.get("steps_total")) == (0.25, 8.0, 8.0)


def test_a_hello_that_its_client_repeats_before_it_is_answered_is_not_resolved_again(
    desk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolved: list[str] = []
    opened = desk.house.runs.open

    def counting(session: Any, hello: Any, *rest: Any) -> Any:
        resolved.append(hello.config)
        return opened(session, hello, *rest)

    monkeypatch.setattr(desk.house.runs, "open", counting)
    fake_session = FakeSession()
    for _ in range(5):
        assert desk.greet(fake_session) == [answer("welcome")]
    assert resolved == [""]
    assert desk.counts(daemon.INGEST_MESSAGES) == {"hello": 5.0}
    desk.receive(*fake_session.frames("hello", fake_session.hello(config="{}")))
    assert resolved == ["", "{}"], "something is new"
    desk.receive(*fake_session.frames("hello", fake_session.hello(config="{}")), peer=b"\0other")
    assert resolved == ["", "{}", "{}"], "another connection has missed what was answered on the first"


def test_a_hello_of_another_user_that_repeats_one_on_its_connection_is_refused(desk: Any) -> None:
    fake_session = FakeSession()
    frames = fake_session.frames("hello", fake_session.hello(desk.house.after))
    assert desk.receive(*frames) == [answer("welcome")]
    answers, _ = desk.sessions.receive(Connection(PEER, os.getuid() + 1), frames, desk.house.now)
    assert (answers, desk.counts(daemon.INGEST_REJECTED)) == ([], {"owner": 1.0})
    assert desk.receive(*frames) == [answer("welcome")]


def test_a_repeated_hello_is_sent_to_the_history_once(desk: Any, fake_session: FakeSession) -> None:
    for number in range(1, 50):
        desk.house.after = float(number)
        assert desk.greet(fake_session) == [answer("welcome")]
    assert len(records(desk, SessionOpened)) == 1
    desk.receive(*fake_session.frames("hello", fake_session.hello(config='{"lr": 1}')))
    assert [one.hello.config for one in records(desk, SessionOpened)] == ["", '{"lr": 1}'], "but what is new is sent"


def test_after_a_renouncement_all_that_was_not_acknowledged_is_asked_for_again(
    desk: Any, fake_session: FakeSession
) -> None:
    for number in (1, 2, 3):
        desk.receive(*fake_session.batch(number))
    assert desk.commit(1) == [answer("ack", 1)]
    lost = list(desk.receipts)
    desk.sessions.forget()
    assert [desk.sessions.committed(receipt) for receipt in lost] == [None, None]
    assert desk.receive(*fake_session.batch(4)) == [answer("hello?")]
    desk.receipts.clear()
    assert desk.greet(fake_session, acked=1) == [answer("welcome", 1)]
    for number in (2, 3, 4):
        desk.receive(*fake_session.batch(number))
    assert desk.commit() == [answer("ack", 2), answer("ack", 3), answer("ack", 4)]
    assert len(records(desk, SessionOpened)) == 2, "the new history receives it too"


def test_derived_rows_of_a_session_that_greets_again_have_the_right_time(desk: Any) -> None:
    ranks = [FakeSession(rank=rank, world=2) for rank in range(2)]
    for fake_session in ranks:
        desk.greet(fake_session)
    desk.receive(*ranks[0].batch(1, {"grad_norm_local_squared": 9.0}))
    desk.sessions.forget()
    for fake_session in ranks:
        desk.greet(fake_session)
    desk.receive(*ranks[1].batch(1, {"grad_norm_local_squared": 16.0}))
    derived = [record for record in records(desk, BatchIngested) if record.number == 0]
    assert [record.columns[0].values[0] for record in derived] == [5.0, 5.0]
    assert [(record.columns[0].times[0] + record.shift) / 1e9 for record in derived] == [WALL, WALL]


def test_a_run_that_has_left_the_page_leaves_memory(desk: Any, fake_session: FakeSession) -> None:
    run = weakref.ref(desk.sessions._sessions[fake_session.id].training.run)
    desk.receive(*fake_session.frames("bye", fake_session.bye(), 1))
    for after in (1000.0, 1001.0):
        desk.house.after = after
        desk.tick()
    gc.collect()
    assert run() is None


def test_changes_of_a_run_are_recorded_as_events_and_states(desk: Any) -> None:
    first, second = (FakeSession(rank=rank, world=2, local_world=2) for rank in range(2))
    for fake_session in (first, second):
        desk.greet(fake_session)
        desk.receive(*fake_session.batch(1))
    desk.receive(*first.frames("bye", first.bye("finished", 5.0), 2))
    assert standings(desk)[-1] == (0, "running", False), "the other rank lives"
    desk.receive(*second.frames("bye", second.bye("failed", 6.0), 2))
    assert events(desk) == [("run_started", 0, None), ("rank_ended", 0, 0), ("rank_ended", 0, 1)]
    ends = [(one.time, dict(one.fields)) for one in records(desk, Event)[1:]]
    assert ends == [
        (WALL + 5, {"state": "finished", "cause": ""}),
        (WALL + 6, {"state": "failed", "cause": ""}),
    ]
    end = records(desk, RunState)[-1]
    assert (end.run, end.attempt, end.state, end.ended) == ("id-1", 0, "failed", WALL + 6)
    desk.greet(FakeSession())
    assert events(desk)[-1] == ("run_restarted", 1, None)
    assert standings(desk)[-1] == (1, "starting", False)


def test_an_attempt_that_was_given_up_for_another_is_lost(desk: Any, fake_session: FakeSession) -> None:
    desk.receive(*fake_session.batch(1))
    desk.house.after = 9.0
    desk.greet(FakeSession(attempt=1))
    (given_up,) = [one for one in records(desk, RunState) if one.ended is not None]
    assert given_up == RunState("id-1", 0, "lost", "given up for another attempt", WALL + 9)
    assert standings(desk)[-1] == (1, "starting", False)


def test_a_run_over_the_limit_is_in_the_history_all_the_same_with_its_end() -> None:
    desk: Any = SessionsHarness(runs=1)
    desk.greet(FakeSession("a"))
    fake_session = FakeSession("b", name="late", boot="another")
    desk.past["b"] = (2, 99.0)
    desk.greet(fake_session)
    desk.receive(*fake_session.batch(1, {"loss": 1.5}))
    desk.house.after = 4.0
    desk.receive(*fake_session.frames("bye", fake_session.bye("failed", 4.0), 2))
    assert desk.house.has("late") == set()
    (opened,) = [one for one in records(desk, SessionOpened) if one.session.id == fake_session.id]
    assert (opened.session.name, opened.session.attempt) == ("late", 3)
    assert [(one.number, len(one.columns)) for one in records(desk, BatchIngested)] == [(1, 1), (2, 0)]
    desk.house.after = 60.0
    desk.tick()
    assert [one for one in records(desk, RunState) if one.run == "b"] == [RunState("b", 3, "failed", "", WALL + 4)]


def test_a_session_over_the_limit_of_an_earlier_daemon_stays_in_its_attempt() -> None:
    desk: Any = SessionsHarness(runs=1)
    desk.greet(FakeSession("a"))
    fake_session = FakeSession("b", name="late")
    desk.kept[fake_session.id] = StoredSession(3, 2)
    desk.past["b"] = (2, None)
    for _ in range(2):
        assert desk.greet(fake_session) == [answer("welcome", 3)]
    assert [one.session.attempt for one in records(desk, SessionOpened) if one.session.id == fake_session.id] == [2]


def test_a_run_over_the_limit_that_is_killed_is_lost_in_the_history() -> None:
    desk: Any = SessionsHarness(runs=1)
    desk.greet(FakeSession("a"))
    desk.greet(FakeSession("b", name="late", boot="another"))
    desk.house.after = 29.0
    desk.tick()
    assert all(one.run == "a" for one in records(desk, RunState))
    desk.house.after = 31.0
    desk.tick()
    desk.tick()
    assert [one for one in records(desk, RunState) if one.run == "b"] == [
        RunState("b", 0, "lost", "unknown", WALL + 31)
    ]


def provisional(fake_session: FakeSession) -> Bye:
    bye = fake_session.bye()
    bye.provisional = True
    return bye


@pytest.mark.parametrize("reported", ["at once", "when it greets again"])
def test_a_process_of_another_pid_namespace_is_identified_by_the_pid_that_this_machine_counts(
    desk: Any, reported: str
) -> None:
    fake_session = FakeSession(pid=1)
    if reported != "at once":
        desk.greet(fake_session)
    desk.pid = 4321
    desk.greet(fake_session)
    assert records(desk, SessionOpened)[-1].hello.identity == replace(fake_session.identity, pid=4321)
    desk.exit(fake_session, 0, pid=1)
    assert desk.house.state_of() == "starting"
    desk.exit(fake_session, 3, pid=4321)
    assert desk.house.state_of() == "failed"


def test_a_process_that_its_connection_identifies_is_never_silent(desk: Any) -> None:
    desk.pid = 2**31 - 1  # of which there is none
    desk.greet(FakeSession())
    desk.house.after = 1000.0
    desk.tick()
    assert desk.house.state_of() == "starting"


@pytest.mark.parametrize(
    ("sends_bye", "code", "expected"),
    [
        (False, 0, [("finished", "")]),
        (False, -9, [("failed", "SIGKILL")]),
        (True, 0, [("finished", ""), ("finished", "")]),
        (True, 3, [("finished", ""), ("failed", "exit status 3")]),
    ],
)
def test_a_run_over_the_limit_ends_in_the_history_as_its_process_did(
    sends_bye: bool, code: int, expected: list[tuple[str, str]]
) -> None:
    desk: Any = SessionsHarness(runs=1)
    desk.pid = 1234
    desk.greet(FakeSession("a"))
    fake_session = FakeSession("b", name="late")
    desk.pid = 4321
    desk.greet(fake_session)
    if sends_bye:
        desk.receive(*fake_session.frames("bye", provisional(fake_session), 1))
    desk.house.after = 1000.0
    desk.tick()
    desk.exit(fake_session, code, pid=4321)
    desk.tick()
    assert [(one.state, one.cause) for one in records(desk, RunState) if one.run == "b"] == expected


def test_a_run_over_the_limit_that_has_sent_its_bye_is_not_lost_by_its_silence() -> None:
    desk: Any = SessionsHarness(runs=1)
    desk.greet(FakeSession("a"))
    fake_session = FakeSession("b", name="late", boot="another")
    desk.greet(fake_session)
    desk.receive(*fake_session.frames("bye", provisional(fake_session), 1))
    desk.house.after = 1000.0
    desk.tick()
    assert [one.state for one in records(desk, RunState) if one.run == "b"] == ["finished"]


def test_samples_over_a_limit_of_the_page_are_in_the_history_all_the_same() -> None:
    desk: Any = SessionsHarness(keys=1)
    fake_session = FakeSession()
    desk.greet(fake_session)
    desk.receive(*fake_session.batch(1, {"a": 1.0, "b": 2.0, "x" * 300: 3.0}))
    assert desk.house.get("value", "train", "0", "b") is None
    (accepted,) = records(desk, BatchIngested)
    assert accepted.columns[0].keys == ["a", "b", "x" * 300]


def test_a_run_with_an_endless_id_has_one_id_on_the_page_and_in_the_history() -> None:
    desk: Any = SessionsHarness(label_bytes=16)
    fake_session = FakeSession("i" * 1000)
    desk.greet(fake_session)
    desk.receive(*fake_session.skip(1, 2))
    desk.receive(*fake_session.frames("bye", fake_session.bye(), 3))
    ids = {one.run for one in desk.house.records if type(one) in {Event, RunState}}
    assert {one.hello.identity.run for one in records(desk, SessionOpened)} == ids == {"i" * 16}


def attempts(desk: Any) -> list[str]:
    """Return the attempts on the page."""
    return [one.labels[2] for one in desk.house.page() if one.family == "run_info"]
