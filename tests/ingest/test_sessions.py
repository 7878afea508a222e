"""The protocol: greetings, the order of accepted messages, and the answers."""

from __future__ import annotations

import gc
import os
import weakref
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from ingest.conftest import SessionsHarness
from msgspec.structs import replace
from wire_messages import WALL, FakeSession, clock

from trackside.wire import MESSAGE_BYTES, REASONS, Bye, Envelope, Heartbeat, Pushes, Skip, Totals, encode
from trackside_daemon.history.read.attempts import StoredSession
from trackside_daemon.ingest import greeting as module
from trackside_daemon.ingest import messages
from trackside_daemon.ingest.connection import Connection
from trackside_daemon.ingest.messages import KINDS
from trackside_daemon.model.families import daemon
from trackside_daemon.model.records import BatchIngested, Event, RunState, SessionOpened

if TYPE_CHECKING:
    from collections.abc import Callable


def answer(kind: str, number: int = 0, reason: str = "") -> tuple[str, int, str]:
    return (kind, number, reason)


@pytest.fixture
def who(desk: Any) -> FakeSession:
    """A session that has been greeted."""
    speaker = FakeSession()
    desk.greet(speaker)
    return speaker


def bad_body(who: FakeSession, number: int, kind: str = "batch") -> list[bytes]:
    return [*encode(Envelope(kind, who.id, number))[:2], b"\xc1"]


def too_large(who: FakeSession, number: int) -> list[bytes]:
    return [*who.batch(number)[:2], bytes(MESSAGE_BYTES + 1)]


def bad_block(who: FakeSession, number: int) -> list[bytes]:
    pushes = who.pushes({"loss": 1.0})
    pushes.blocks[0].times = b""
    return who.frames("batch", pushes, number)


def test_a_hello_is_welcomed_and_shows_the_run(desk: Any) -> None:
    assert desk.greet(FakeSession()) == [answer("welcome", 0)]
    assert desk.house.state_of() == "starting"


def test_a_welcome_after_a_restart_goes_on_where_the_last_daemon_ended(desk: Any) -> None:
    who = FakeSession()
    assert desk.greet(who, acked=41) == [answer("welcome", 41)]
    assert desk.say(*who.batch(42)) == []
    assert desk.commit() == [answer("ack", 42)]


def test_a_second_hello_is_told_what_is_committed_and_not_what_is_only_taken(desk: Any, who: FakeSession) -> None:
    for number in (1, 2, 3):
        desk.say(*who.batch(number))
    desk.commit(2)
    assert desk.greet(who) == [answer("welcome", 2)]
    assert desk.say(*who.batch(3)) == [answer("ack", 2)], "taken already, committed not yet"
    assert desk.commit() == [answer("ack", 3)]


def test_nothing_of_a_session_that_is_not_greeted_is_taken(desk: Any) -> None:
    who = FakeSession()
    for frames in (
        who.batch(1),
        who.skip(1, 3),
        who.frames("bye", who.bye(), 1),
        who.frames("beat", Heartbeat(clock())),
    ):
        assert desk.say(*frames) == [answer("hello?")]
    assert desk.taken == []
    assert desk.house.page() == {}
    assert desk.counts(daemon.INGEST_MESSAGES) == {}


def test_a_batch_is_acknowledged_when_it_is_committed_and_not_before(desk: Any, who: FakeSession) -> None:
    assert desk.say(*who.batch(1)) == []
    assert desk.house.get("loss") == 1.0
    assert desk.commit() == [answer("ack", 1)]


def test_a_bye_and_a_skip_are_acknowledged_like_a_batch(desk: Any, who: FakeSession) -> None:
    desk.say(*who.skip(1, 3))
    desk.say(*who.frames("bye", who.bye(), 4))
    assert desk.commit() == [answer("ack", 3), answer("ack", 4)]
    assert desk.house.state_of() == "finished"


def test_a_batch_that_was_taken_already_is_dropped_and_acknowledged(desk: Any, who: FakeSession) -> None:
    desk.say(*who.batch(1))
    desk.say(*who.batch(2))
    desk.commit()
    assert desk.say(*who.batch(1, {"loss": 9.0})) == [answer("ack", 2)]
    assert desk.house.get("loss") == 2.0
    assert desk.count(daemon.INGEST_DUPLICATES) == 1.0
    assert desk.counts(daemon.INGEST_MESSAGES) == {"hello": 1.0, "batch": 2.0}


def test_a_batch_that_comes_too_early_is_asked_for_again(desk: Any, who: FakeSession) -> None:
    desk.say(*who.batch(1))
    desk.commit()
    assert desk.say(*who.batch(3)) == [answer("ack", 1)]
    assert desk.house.get("loss") == 1.0
    for number in (2, 3):
        desk.say(*who.batch(number))
    assert desk.commit() == [answer("ack", 2), answer("ack", 3)]
    assert desk.count(daemon.INGEST_GAPS) == 0.0


def test_a_skip_bridges_a_gap_that_is_counted(desk: Any, who: FakeSession) -> None:
    desk.say(*who.batch(1))
    assert desk.say(*who.skip(2, 5)) == []
    desk.say(*who.batch(6))
    assert desk.commit() == [answer("ack", 1), answer("ack", 5), answer("ack", 6)]
    assert desk.count(daemon.INGEST_GAPS) == 4.0


def test_a_skip_that_begins_before_what_is_taken_counts_only_what_is_missing(desk: Any, who: FakeSession) -> None:
    for number in (1, 2):
        desk.say(*who.batch(number))
    desk.say(*who.skip(1, 5))
    assert desk.count(daemon.INGEST_GAPS) == 3.0


def test_a_skip_that_begins_too_late_is_asked_for_again(desk: Any, who: FakeSession) -> None:
    assert desk.say(*who.skip(3, 5)) == [answer("ack", 0)]
    assert desk.count(daemon.INGEST_GAPS) == 0.0


@pytest.mark.parametrize(("bad", "reason"), [(bad_body, "body"), (bad_block, "block"), (too_large, "size")])
def test_a_batch_that_cannot_be_read_is_refused_in_its_turn_and_its_neighbours_live(
    desk: Any, who: FakeSession, bad: Callable[[FakeSession, int], list[bytes]], reason: str
) -> None:
    assert desk.say(*who.batch(1)) == []
    assert desk.say(*bad(who, 2)) == []
    assert desk.say(*who.batch(3)) == []
    assert desk.commit() == [answer("ack", 1), answer("nack", 2, reason), answer("ack", 3)]
    assert desk.counts(daemon.INGEST_REJECTED) == {reason: 1.0}
    assert desk.house.get("loss") == 3.0
    assert desk.say(*bad(who, 2)) == [answer("nack", 2, reason)], "the refusal is final"


def test_a_bad_batch_out_of_its_turn_is_not_even_looked_at(desk: Any, who: FakeSession) -> None:
    assert desk.say(*bad_body(who, 5)) == [answer("ack", 0)]
    assert desk.counts(daemon.INGEST_REJECTED) == {}


@pytest.mark.parametrize("kind", ["skip", "bye"])
def test_a_bad_skip_or_bye_is_refused_too(desk: Any, who: FakeSession, kind: str) -> None:
    desk.say(*bad_body(who, 1, kind))
    desk.say(*who.batch(2))
    assert desk.commit() == [answer("nack", 1, "body"), answer("ack", 2)]


@pytest.mark.parametrize("kind", ["hello", "beat"])
def test_a_bad_hello_or_beat_is_only_counted(desk: Any, who: FakeSession, kind: str) -> None:
    assert desk.say(*bad_body(who, 0, kind)) == []
    assert desk.counts(daemon.INGEST_REJECTED) == {"body": 1.0}


def test_a_beat_says_alive(desk: Any, who: FakeSession) -> None:
    assert desk.say(*who.frames("beat", Heartbeat(clock()))) == []
    assert desk.counts(daemon.INGEST_MESSAGES) == {"hello": 1.0, "beat": 1.0}


@pytest.mark.parametrize("protocol", [b"trackside/0", b"trackside/2", b"trackside/99999", b"trackside/"])
def test_another_version_is_told_which_one_is_read(desk: Any, protocol: bytes) -> None:
    assert desk.say(protocol, b"whatever") == [answer("refused", 0, "[1]")]
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
    assert desk.say(*frames) == []
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
    for who in (first, second):
        desk.greet(who)
    for number in (1, 2):
        desk.say(*first.batch(number))
    desk.say(*second.batch(1))
    assert desk.commit() == [answer("ack", 1), answer("ack", 2), answer("ack", 1)]


def test_a_session_answers_to_the_connection_that_it_last_spoke_on(desk: Any, who: FakeSession) -> None:
    desk.say(*who.batch(1), peer=b"\0old")
    desk.say(*who.batch(2), peer=b"\0new")
    answers = [desk.sessions.committed(receipt) for receipt in desk.taken]
    assert [one[0] for one in answers] == [b"\0new", b"\0new"]


def test_a_hello_that_knows_of_more_than_this_daemon_goes_on_from_there(desk: Any, who: FakeSession) -> None:
    desk.say(*who.batch(1))
    assert desk.greet(who, acked=10) == [answer("welcome", 10)]
    desk.say(*who.batch(11))
    assert desk.commit() == [answer("ack", 1), answer("ack", 11)]


def test_a_refusal_whose_answer_was_lost_is_told_again(desk: Any, who: FakeSession) -> None:
    desk.say(*bad_body(who, 1))
    desk.say(*who.batch(2))
    assert desk.commit() == [answer("nack", 1, "body"), answer("ack", 2)]
    assert desk.say(*bad_body(who, 1)) == [answer("nack", 1, "body")]
    assert desk.say(*who.batch(2)) == [answer("ack", 2)]


def test_a_session_that_is_silent_for_an_hour_is_asked_for_a_hello(desk: Any, who: FakeSession) -> None:
    desk.house.after = 3599.0
    desk.sessions.tick(desk.house.now)
    assert desk.say(*who.batch(1)) == []
    desk.commit()
    desk.house.after += 3601.0
    desk.sessions.tick(desk.house.now)
    assert desk.say(*who.batch(2)) == [answer("hello?")]
    assert desk.greet(who, acked=1) == [answer("welcome", 1)]


def test_with_too_many_sessions_the_most_silent_one_is_forgotten(
    desk: Any, monkeypatch: pytest.MonkeyPatch, count: Callable[[int, int], int]
) -> None:
    monkeypatch.setattr(module, "SESSIONS", 10)
    loyal = FakeSession("loyal")
    desk.greet(loyal)
    for number in range(1, count(100, 10_000)):
        desk.house.after += 0.01
        desk.greet(FakeSession())
        assert desk.say(*loyal.batch(number)) == []
    assert len(desk.sessions._sessions) == 10


def test_each_sender_is_logged_once_for_each_reason_and_not_for_ever(
    desk: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(messages, "LOGGED", 3)
    for _ in range(4):
        for peer in (b"a", b"b"):
            desk.say(b"trackside/9", peer=peer)
            desk.say(b"nonsense", peer=peer)
    assert len(caplog.messages) == 3
    assert caplog.messages[0] == (
        "a message was refused: version: got b'trackside/9', this side reads b'trackside/1';"
        " further ones from this sender are only counted"
    )
    assert desk.counts(daemon.INGEST_REJECTED) == {"version": 8.0, "frames": 8.0}


def test_a_session_over_the_limit_of_runs_is_acknowledged_all_the_same() -> None:
    desk: Any = SessionsHarness(runs=1)
    desk.greet(FakeSession("a"))
    who = FakeSession("b", name="late")
    assert desk.greet(who) == [answer("welcome")]
    assert desk.say(*who.batch(1)) == []
    assert desk.say(*bad_block(who, 2)) == []
    assert desk.commit() == [answer("ack", 1), answer("nack", 2, "block")]
    assert desk.house.has("late") == set()


def test_fields_of_a_later_version_are_passed_over(desk: Any, who: FakeSession) -> None:
    frames = who.batch(1)
    body = msgspec.msgpack.decode(frames[2])
    body["mood"] = {"good": True}
    body["totals"]["future"] = 1
    assert desk.say(*frames[:2], msgspec.msgpack.encode(body)) == []
    assert desk.commit() == [answer("ack", 1)]


def test_numbers_at_the_end_of_their_range_are_taken(desk: Any) -> None:
    last = 2**63 - 1
    who = FakeSession()
    assert desk.greet(who, acked=last - 1) == [answer("welcome", last - 1)]
    desk.say(*who.batch(last, step=1))
    assert desk.commit() == [answer("ack", last)]
    assert desk.say(*who.skip(1, last)) == [answer("ack", last)]


def test_a_hello_may_not_claim_less_than_nothing(desk: Any) -> None:
    who = FakeSession()
    desk.greet(who, acked=-5)
    desk.say(*who.batch(1))
    assert desk.commit() == [answer("ack", 1)]


def test_a_receipt_of_a_session_that_was_forgotten_is_forgotten_too(desk: Any, who: FakeSession) -> None:
    desk.say(*who.batch(1))
    desk.sessions._sessions.clear()
    assert desk.commit() == []


def test_a_body_without_its_blocks_is_refused(desk: Any, who: FakeSession) -> None:
    body = {"clock": {"wall": 1, "monotonic": 1}, "totals": {}}
    desk.say(*who.frames("batch", None, 1)[:2], msgspec.msgpack.encode(body))
    assert desk.commit() == [answer("nack", 1, "body")]


@pytest.mark.parametrize(
    "totals",
    [Totals(overhead=float("nan")), Totals(overhead=-1.0), Totals(samples=float("nan")), Totals(steps=-1)],
    ids=["nan seconds", "negative seconds", "nan samples", "negative steps"],
)
def test_totals_that_no_counter_may_have_are_refused(desk: Any, who: FakeSession, totals: Totals) -> None:
    desk.say(*who.frames("batch", Pushes(clock(), totals, []), 1))
    assert desk.commit() == [answer("nack", 1, "body")]


def test_a_session_id_alone_does_not_let_a_stranger_change_the_run(desk: Any, who: FakeSession) -> None:
    stranger = FakeSession("other", name="stranger")
    stranger.id = who.id
    desk.greet(stranger)
    assert desk.house.has("stranger") == set()


def test_what_is_said_again_and_again_grows_nothing(desk: Any, count: Callable[[int, int], int]) -> None:
    who = FakeSession()
    for _ in range(count(200, 20_000)):
        desk.greet(who)
        desk.say(*replace_session(who.frames("beat", Heartbeat(clock()))))
    assert (len(desk.sessions._sessions), len(list(desk.house.runs._sessions()))) == (1, 1)


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


def test_the_history_is_told_of_a_session_before_what_it_pushed(desk: Any, who: FakeSession) -> None:
    desk.say(*who.batch(1, {"loss": 2.5}, after=3.0))
    (opened,), (taken,) = records(desk, SessionOpened), records(desk, BatchIngested)
    assert (opened.session.id, opened.session.name, opened.session.attempt, opened.time) == (who.id, "train", 0, WALL)
    assert desk.house.records.index(opened) < desk.house.records.index(taken)
    assert (taken.session.id, taken.number) == (who.id, 1)
    (columns,) = taken.columns
    assert columns.keys == ["loss"]
    assert columns.times[0] + taken.shift == round((WALL + 3) * 1e9), "its time, as Unix time"


@pytest.mark.parametrize(("after", "late"), [(59.0, False), (61.0, True)])
def test_what_is_a_minute_old_is_said_to_be_late(desk: Any, who: FakeSession, *, after: float, late: bool) -> None:
    desk.house.after = after
    who.totals.phases = {"eval": 7.0}
    desk.say(*who.batch(1, after=0.0))
    (taken,) = records(desk, BatchIngested)
    assert (taken.late, taken.phases) == (late, {"eval": 7.0})


def test_a_bye_and_a_skip_bring_what_was_spent_in_phases_after_the_last_push(desk: Any, who: FakeSession) -> None:
    said = {}
    for number, kind in ((1, "batch"), (2, "skip"), (3, "bye")):
        who.totals.phases = said[number] = {"forward": float(number)}
        frames = {"batch": who.batch, "skip": lambda number: who.skip(number, number)}
        desk.say(*(frames[kind](number) if kind in frames else who.frames("bye", who.bye(), number)))
    assert {one.number: one.phases for one in records(desk, BatchIngested)} == said


@pytest.mark.parametrize(("boot", "offset"), [(None, 0.0), ("another", 7.0)])
def test_only_a_clock_of_another_machine_is_corrected(desk: Any, boot: str | None, offset: float) -> None:
    who = FakeSession(**({} if boot is None else {"boot": boot}))
    desk.house.after = 7.0
    desk.say(*who.frames("hello", who.hello(0.0)))
    desk.say(*who.batch(1))
    (opened,), (taken,) = records(desk, SessionOpened), records(desk, BatchIngested)
    assert opened.offset == offset
    assert taken.shift == round((WALL - 50 + offset) * 1e9)


def test_records_and_number_of_a_message_travel_together(desk: Any, who: FakeSession) -> None:
    said = {
        1: who.batch(1),
        2: bad_body(who, 2),
        4: who.skip(3, 4),
        5: who.frames("bye", who.bye("failed"), 5),
    }
    for number, frames in said.items():
        _, batches = desk.sessions.receive(Connection(b"peer", os.getuid()), frames, desk.house.now)
        (last,) = [batch for batch in batches if batch.receipt is not None]
        assert last is batches[-1], "what it is told beside comes before the receipt"
        (taken,) = [record for record in last.records if type(record) is BatchIngested]
        assert (taken.number, last.receipt.number) == (number, number)
        assert bool(taken.columns) is (number == 1)


def test_a_gap_is_an_event_of_its_rank(desk: Any) -> None:
    who = FakeSession(rank=3, world=4, local_world=4)
    desk.greet(who)
    desk.say(*who.batch(1))
    desk.say(*who.skip(2, 6))
    gap = records(desk, Event)[-1]
    assert (gap.kind, gap.rank, gap.run, dict(gap.fields)) == ("gap", 3, "id-1", {"batches": 5})
    desk.say(*who.frames("skip", Skip(7, who.totals, 1200, (60, 99)), 8))
    assert dict(records(desk, Event)[-1].fields) == {"batches": 2, "values": 1200, "steps": "60 to 99"}


def test_a_session_that_an_earlier_daemon_knew_goes_on_where_that_had_committed(desk: Any) -> None:
    who = FakeSession()
    desk.kept[who.id] = StoredSession(41, 3)
    desk.past["id-1"] = (3, None)
    assert desk.greet(who, acked=39) == [answer("welcome", 41)]
    assert desk.say(*who.batch(40)) == [answer("ack", 41)], "it is in the history already"
    assert records(desk, BatchIngested) == []
    desk.say(*who.batch(42))
    assert desk.commit() == [answer("ack", 42)]
    assert [one.number for one in records(desk, BatchIngested)] == [42]
    assert [one.session.attempt for one in records(desk, SessionOpened)] == [3]
    assert attempts(desk) == ["3"]
    assert events(desk) == [], "it neither begins nor is restarted"


def test_a_session_that_was_forgotten_meanwhile_is_asked_of_the_history(desk: Any, who: FakeSession) -> None:
    desk.say(*who.batch(1))
    desk.commit()
    desk.kept[who.id] = StoredSession(1, 0)
    desk.sessions.forget()
    assert desk.greet(who) == [answer("welcome", 1)]


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
    desk.say(*late.batch(6, {"loss": 9.0}))
    assert desk.commit() == [answer("ack", 6)]
    assert [one.session.attempt for one in records(desk, SessionOpened)] == [1, 0]
    assert desk.house.get("loss") is None
    assert attempts(desk) == ["1"]


def test_a_session_whose_bye_was_committed_and_never_acknowledged_does_not_begin_its_run_again(desk: Any) -> None:
    who = FakeSession()
    desk.kept[who.id] = StoredSession(9, 0, ended=True)
    desk.past["id-1"] = (0, 99.0)
    assert desk.greet(who, acked=8) == [answer("welcome", 9)]
    assert desk.house.records == []
    assert desk.house.page() == {}


def test_a_session_that_speaks_on_after_its_rank_had_ended_is_shown_again(desk: Any) -> None:
    who = FakeSession()
    desk.kept[who.id] = StoredSession(9, 0, ended=True)
    desk.greet(who)
    assert desk.say(*who.frames("beat", Heartbeat(clock()))) == [answer("hello?")]
    assert desk.greet(who) == [answer("welcome", 9)]
    desk.say(*who.batch(10))
    assert desk.commit() == [answer("ack", 10)]
    assert desk.house.state_of() == "running"
    assert [one.session.attempt for one in records(desk, SessionOpened)] == [0]


def test_without_room_numbered_messages_are_left_and_greetings_and_beats_are_not(desk: Any) -> None:
    who = FakeSession()
    assert desk.say(*who.frames("hello", who.hello()), room=False) == [answer("welcome")]
    for frames in (who.batch(1), who.skip(1, 3), who.frames("bye", who.bye(), 1), bad_body(who, 1)):
        assert desk.say(*frames, room=False) == []
    assert (desk.taken, records(desk, BatchIngested)) == ([], [])
    assert desk.house.state_of() == "starting"
    assert desk.counts(daemon.INGEST_REJECTED) == {}
    stuck = Heartbeat(clock(9.0), 500_000_000, Totals(pushes=7, steps=7), {"loss": 0.5, "other": 3.0}, 7)
    assert desk.say(*who.frames("beat", stuck), room=False) == []
    assert (desk.house.get("loss"), desk.house.get("step"), desk.house.get("steps_total")) == (0.5, 7.0, 7.0)
    assert desk.house.get("value", "train", "0", "other") == 3.0
    assert desk.house.get("last_step_timestamp_seconds") == WALL + 8.5
    assert desk.say(*FakeSession().frames("beat", stuck), room=False) == [answer("hello?")]
    assert desk.say(*who.batch(1)) == [answer("hello?")], "the history has not been told of it"
    assert records(desk, SessionOpened) == []
    desk.say(*who.frames("hello", who.hello()))
    assert desk.say(*who.batch(1)) == []
    assert desk.commit() == [answer("ack", 1)]


def test_a_session_that_opened_without_room_is_new_to_later_stages_once_there_is_room(desk: Any) -> None:
    who = FakeSession()
    who.totals = replace(who.totals, paused=5.0)
    desk.say(*who.frames("hello", who.hello()), room=False)
    who.totals = replace(who.totals, paused=7.0)
    desk.greet(who)
    assert [record.again for record in records(desk, SessionOpened)] == [False]
    who.totals = replace(who.totals, paused=8.0)
    desk.say(*who.batch(1))
    assert [record.paused for record in records(desk, BatchIngested)] == [1.0]


def test_what_a_beat_has_told_is_not_undone_by_the_batches_that_come_later(desk: Any, who: FakeSession) -> None:
    desk.say(*who.frames("beat", Heartbeat(clock(9.0), 0, Totals(pushes=7, steps=7), {"loss": 0.5}, 7)))
    desk.say(*who.batch(1, {"loss": 2.5}, after=1.0))
    assert (desk.house.get("loss"), desk.house.get("step"), desk.house.get("steps_total")) == (0.5, 7.0, 7.0)
    desk.say(*who.batch(2, {"loss": 0.25}, after=10.0, step=8, pushes=8, steps=8))
    assert (desk.house.get("loss"), desk.house.get("step"), desk.house.get("steps_total")) == (0.25, 8.0, 8.0)


def test_a_greeting_that_is_repeated_is_told_to_the_history_once(desk: Any, who: FakeSession) -> None:
    for number in range(1, 50):
        desk.house.after = float(number)
        assert desk.greet(who) == [answer("welcome")]
    assert len(records(desk, SessionOpened)) == 1
    desk.say(*who.frames("hello", who.hello(config='{"lr": 1}')))
    assert [one.hello.config for one in records(desk, SessionOpened)] == ["", '{"lr": 1}'], "but what is new is told"


def test_after_a_renouncement_all_that_was_not_acknowledged_is_asked_for_again(desk: Any, who: FakeSession) -> None:
    for number in (1, 2, 3):
        desk.say(*who.batch(number))
    assert desk.commit(1) == [answer("ack", 1)]
    lost = list(desk.taken)
    desk.sessions.forget()
    assert [desk.sessions.committed(receipt) for receipt in lost] == [None, None]
    assert desk.say(*who.batch(4)) == [answer("hello?")]
    desk.taken.clear()
    assert desk.greet(who, acked=1) == [answer("welcome", 1)]
    for number in (2, 3, 4):
        desk.say(*who.batch(number))
    assert desk.commit() == [answer("ack", 2), answer("ack", 3), answer("ack", 4)]
    assert len(records(desk, SessionOpened)) == 2, "the new history is told of it too"


def test_derived_rows_of_a_session_that_greets_again_have_the_right_time(desk: Any) -> None:
    ranks = [FakeSession(rank=rank, world=2) for rank in range(2)]
    for who in ranks:
        desk.greet(who)
    desk.say(*ranks[0].batch(1, {"grad_norm_local_squared": 9.0}))
    desk.sessions.forget()
    for who in ranks:
        desk.greet(who)
    desk.say(*ranks[1].batch(1, {"grad_norm_local_squared": 16.0}))
    derived = [record for record in records(desk, BatchIngested) if record.number == 0]
    assert [record.columns[0].values[0] for record in derived] == [5.0, 5.0]
    assert [(record.columns[0].times[0] + record.shift) / 1e9 for record in derived] == [WALL, WALL]


def test_a_run_that_has_left_the_page_leaves_memory(desk: Any, who: FakeSession) -> None:
    run = weakref.ref(desk.sessions._sessions[who.id].training.run)
    desk.say(*who.frames("bye", who.bye(), 1))
    for after in (1000.0, 1001.0):
        desk.house.after = after
        desk.tick()
    gc.collect()
    assert run() is None


def test_what_happens_to_a_run_is_told_as_events_and_states(desk: Any) -> None:
    first, second = (FakeSession(rank=rank, world=2, local_world=2) for rank in range(2))
    for who in (first, second):
        desk.greet(who)
        desk.say(*who.batch(1))
    desk.say(*first.frames("bye", first.bye("finished", 5.0), 2))
    assert standings(desk)[-1] == (0, "running", False), "the other rank lives"
    desk.say(*second.frames("bye", second.bye("failed", 6.0), 2))
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


def test_an_attempt_that_was_given_up_for_another_is_lost(desk: Any, who: FakeSession) -> None:
    desk.say(*who.batch(1))
    desk.house.after = 9.0
    desk.greet(FakeSession(attempt=1))
    (given_up,) = [one for one in records(desk, RunState) if one.ended is not None]
    assert given_up == RunState("id-1", 0, "lost", "given up for another attempt", WALL + 9)
    assert standings(desk)[-1] == (1, "starting", False)


def test_a_run_over_the_limit_is_in_the_history_all_the_same_with_its_end() -> None:
    desk: Any = SessionsHarness(runs=1)
    desk.greet(FakeSession("a"))
    who = FakeSession("b", name="late", boot="another")
    desk.past["b"] = (2, 99.0)
    desk.greet(who)
    desk.say(*who.batch(1, {"loss": 1.5}))
    desk.house.after = 4.0
    desk.say(*who.frames("bye", who.bye("failed", 4.0), 2))
    assert desk.house.has("late") == set()
    (opened,) = [one for one in records(desk, SessionOpened) if one.session.id == who.id]
    assert (opened.session.name, opened.session.attempt) == ("late", 3)
    assert [(one.number, len(one.columns)) for one in records(desk, BatchIngested)] == [(1, 1), (2, 0)]
    desk.house.after = 60.0
    desk.tick()
    assert [one for one in records(desk, RunState) if one.run == "b"] == [RunState("b", 3, "failed", "", WALL + 4)]


def test_a_session_over_the_limit_that_an_earlier_daemon_knew_stays_in_its_attempt() -> None:
    desk: Any = SessionsHarness(runs=1)
    desk.greet(FakeSession("a"))
    who = FakeSession("b", name="late")
    desk.kept[who.id] = StoredSession(3, 2)
    desk.past["b"] = (2, None)
    for _ in range(2):
        assert desk.greet(who) == [answer("welcome", 3)]
    assert [one.session.attempt for one in records(desk, SessionOpened) if one.session.id == who.id] == [2]


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


def provisional(who: FakeSession) -> Bye:
    bye = who.bye()
    bye.provisional = True
    return bye


@pytest.mark.parametrize("told", ["at once", "when it greets again"])
def test_a_process_of_another_pid_namespace_is_known_by_the_pid_that_this_machine_counts(desk: Any, told: str) -> None:
    who = FakeSession(pid=1)
    if told != "at once":
        desk.greet(who)
    desk.pid = 4321
    desk.greet(who)
    assert records(desk, SessionOpened)[-1].hello.identity == replace(who.identity, pid=4321)
    desk.exit(who, 0, pid=1)
    assert desk.house.state_of() == "starting"
    desk.exit(who, 3, pid=4321)
    assert desk.house.state_of() == "failed"


def test_a_process_whose_connection_tells_who_it_is_is_never_silent(desk: Any) -> None:
    desk.pid = 2**31 - 1  # of which there is none
    desk.greet(FakeSession())
    desk.house.after = 1000.0
    desk.tick()
    assert desk.house.state_of() == "starting"


@pytest.mark.parametrize(
    ("says_bye", "code", "expected"),
    [
        (False, 0, [("finished", "")]),
        (False, -9, [("failed", "SIGKILL")]),
        (True, 0, [("finished", ""), ("finished", "")]),
        (True, 3, [("finished", ""), ("failed", "exit status 3")]),
    ],
)
def test_a_run_over_the_limit_ends_in_the_history_as_its_process_did(
    says_bye: bool, code: int, expected: list[tuple[str, str]]
) -> None:
    desk: Any = SessionsHarness(runs=1)
    desk.pid = 1234
    desk.greet(FakeSession("a"))
    who = FakeSession("b", name="late")
    desk.pid = 4321
    desk.greet(who)
    if says_bye:
        desk.say(*who.frames("bye", provisional(who), 1))
    desk.house.after = 1000.0
    desk.tick()
    desk.exit(who, code, pid=4321)
    desk.tick()
    assert [(one.state, one.cause) for one in records(desk, RunState) if one.run == "b"] == expected


def test_a_run_over_the_limit_that_has_said_its_bye_is_not_lost_by_its_silence() -> None:
    desk: Any = SessionsHarness(runs=1)
    desk.greet(FakeSession("a"))
    who = FakeSession("b", name="late", boot="another")
    desk.greet(who)
    desk.say(*who.frames("bye", provisional(who), 1))
    desk.house.after = 1000.0
    desk.tick()
    assert [one.state for one in records(desk, RunState) if one.run == "b"] == ["finished"]


def test_samples_over_a_limit_of_the_page_are_in_the_history_all_the_same() -> None:
    desk: Any = SessionsHarness(keys=1)
    who = FakeSession()
    desk.greet(who)
    desk.say(*who.batch(1, {"a": 1.0, "b": 2.0, "x" * 300: 3.0}))
    assert desk.house.get("value", "train", "0", "b") is None
    (taken,) = records(desk, BatchIngested)
    assert taken.columns[0].keys == ["a", "b", "x" * 300]


def test_a_run_with_an_endless_id_has_one_id_on_the_page_and_in_the_history() -> None:
    desk: Any = SessionsHarness(label_bytes=16)
    who = FakeSession("i" * 1000)
    desk.greet(who)
    desk.say(*who.skip(1, 2))
    desk.say(*who.frames("bye", who.bye(), 3))
    ids = {one.run for one in desk.house.records if type(one) in {Event, RunState}}
    assert {one.hello.identity.run for one in records(desk, SessionOpened)} == ids == {"i" * 16}


def attempts(desk: Any) -> list[str]:
    """Return the attempts on the page."""
    return [one.labels[2] for one in desk.house.page() if one.family == "run_info"]
