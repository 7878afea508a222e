"""The protocol: who is greeted, what is taken in which order, and what is answered when."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from msgspec.structs import replace
from speech import Speaker, clock

from trackside.wire import MESSAGE_BYTES, REASONS, Beat, Envelope, Pushes, Totals, encode
from trackside_daemon.ingest import sessions as module
from trackside_daemon.ingest.sessions import DUPLICATES, GAPS, KINDS, MESSAGES, REJECTED

if TYPE_CHECKING:
    from collections.abc import Callable


def answer(kind: str, number: int = 0, reason: str = "") -> tuple[str, int, str]:
    return (kind, number, reason)


@pytest.fixture
def who(desk: Any) -> Speaker:
    """A session that has been greeted."""
    speaker = Speaker()
    desk.greet(speaker)
    return speaker


def bad_body(who: Speaker, number: int, kind: str = "batch") -> list[bytes]:
    return [*encode(Envelope(kind, who.id, number))[:2], b"\xc1"]


def too_large(who: Speaker, number: int) -> list[bytes]:
    return [*who.batch(number)[:2], bytes(MESSAGE_BYTES + 1)]


def bad_block(who: Speaker, number: int) -> list[bytes]:
    pushes = who.pushes({"loss": 1.0})
    pushes.blocks[0].times = b""
    return who.frames("batch", pushes, number)


def test_a_hello_is_welcomed_and_shows_the_run(desk: Any) -> None:
    assert desk.greet(Speaker()) == [answer("welcome", 0)]
    assert desk.house.state_of() == "starting"


def test_a_welcome_after_a_restart_goes_on_where_the_last_daemon_ended(desk: Any) -> None:
    who = Speaker()
    assert desk.greet(who, acked=41) == [answer("welcome", 41)]
    assert desk.say(*who.batch(42)) == []
    assert desk.commit() == [answer("ack", 42)]


def test_a_second_hello_is_told_what_is_committed_and_not_what_is_only_taken(desk: Any, who: Speaker) -> None:
    for number in (1, 2, 3):
        desk.say(*who.batch(number))
    desk.commit(2)
    assert desk.greet(who) == [answer("welcome", 2)]
    assert desk.say(*who.batch(3)) == [answer("ack", 2)], "taken already, committed not yet"
    assert desk.commit() == [answer("ack", 3)]


def test_nothing_of_a_session_that_is_not_greeted_is_taken(desk: Any) -> None:
    who = Speaker()
    for frames in (who.batch(1), who.skip(1, 3), who.frames("bye", who.bye(), 1), who.frames("beat", Beat(clock()))):
        assert desk.say(*frames) == [answer("hello?")]
    assert desk.taken == []
    assert desk.house.page() == {}
    assert desk.counts(MESSAGES) == {}


def test_a_batch_is_acknowledged_when_it_is_committed_and_not_before(desk: Any, who: Speaker) -> None:
    assert desk.say(*who.batch(1)) == []
    assert desk.house.get("loss") == 1.0
    assert desk.commit() == [answer("ack", 1)]


def test_a_bye_and_a_skip_are_acknowledged_like_a_batch(desk: Any, who: Speaker) -> None:
    desk.say(*who.skip(1, 3))
    desk.say(*who.frames("bye", who.bye(), 4))
    assert desk.commit() == [answer("ack", 3), answer("ack", 4)]
    assert desk.house.state_of() == "finished"


def test_a_batch_that_was_taken_already_is_dropped_and_acknowledged(desk: Any, who: Speaker) -> None:
    desk.say(*who.batch(1))
    desk.say(*who.batch(2))
    desk.commit()
    assert desk.say(*who.batch(1, {"loss": 9.0})) == [answer("ack", 2)]
    assert desk.house.get("loss") == 2.0
    assert desk.count(DUPLICATES) == 1.0
    assert desk.counts(MESSAGES) == {"hello": 1.0, "batch": 2.0}


def test_a_batch_that_comes_too_early_is_asked_for_again(desk: Any, who: Speaker) -> None:
    desk.say(*who.batch(1))
    desk.commit()
    assert desk.say(*who.batch(3)) == [answer("ack", 1)]
    assert desk.house.get("loss") == 1.0
    for number in (2, 3):
        desk.say(*who.batch(number))
    assert desk.commit() == [answer("ack", 2), answer("ack", 3)]
    assert desk.count(GAPS) == 0.0


def test_a_skip_bridges_a_gap_that_is_counted(desk: Any, who: Speaker) -> None:
    desk.say(*who.batch(1))
    assert desk.say(*who.skip(2, 5)) == []
    desk.say(*who.batch(6))
    assert desk.commit() == [answer("ack", 1), answer("ack", 5), answer("ack", 6)]
    assert desk.count(GAPS) == 4.0


def test_a_skip_that_begins_before_what_is_taken_counts_only_what_is_missing(desk: Any, who: Speaker) -> None:
    for number in (1, 2):
        desk.say(*who.batch(number))
    desk.say(*who.skip(1, 5))
    assert desk.count(GAPS) == 3.0


def test_a_skip_that_begins_too_late_is_asked_for_again(desk: Any, who: Speaker) -> None:
    assert desk.say(*who.skip(3, 5)) == [answer("ack", 0)]
    assert desk.count(GAPS) == 0.0


@pytest.mark.parametrize(("bad", "reason"), [(bad_body, "body"), (bad_block, "block"), (too_large, "size")])
def test_a_batch_that_cannot_be_read_is_refused_in_its_turn_and_its_neighbours_live(
    desk: Any, who: Speaker, bad: Callable[[Speaker, int], list[bytes]], reason: str
) -> None:
    assert desk.say(*who.batch(1)) == []
    assert desk.say(*bad(who, 2)) == []
    assert desk.say(*who.batch(3)) == []
    assert desk.commit() == [answer("ack", 1), answer("nack", 2, reason), answer("ack", 3)]
    assert desk.counts(REJECTED) == {reason: 1.0}
    assert desk.house.get("loss") == 3.0
    assert desk.say(*bad(who, 2)) == [answer("nack", 2, reason)], "the refusal is final"


def test_a_bad_batch_out_of_its_turn_is_not_even_looked_at(desk: Any, who: Speaker) -> None:
    assert desk.say(*bad_body(who, 5)) == [answer("ack", 0)]
    assert desk.counts(REJECTED) == {}


@pytest.mark.parametrize("kind", ["skip", "bye"])
def test_a_bad_skip_or_bye_is_refused_too(desk: Any, who: Speaker, kind: str) -> None:
    desk.say(*bad_body(who, 1, kind))
    desk.say(*who.batch(2))
    assert desk.commit() == [answer("nack", 1, "body"), answer("ack", 2)]


@pytest.mark.parametrize("kind", ["hello", "beat"])
def test_a_bad_hello_or_beat_is_only_counted(desk: Any, who: Speaker, kind: str) -> None:
    assert desk.say(*bad_body(who, 0, kind)) == []
    assert desk.counts(REJECTED) == {"body": 1.0}


def test_a_beat_says_alive(desk: Any, who: Speaker) -> None:
    assert desk.say(*who.frames("beat", Beat(clock()))) == []
    assert desk.counts(MESSAGES) == {"hello": 1.0, "beat": 1.0}


@pytest.mark.parametrize("protocol", [b"trackside/0", b"trackside/2", b"trackside/99999", b"trackside/"])
def test_another_version_is_told_which_one_is_read(desk: Any, protocol: bytes) -> None:
    assert desk.say(protocol, b"whatever") == [answer("refused", 0, "[1]")]
    assert desk.counts(REJECTED) == {"version": 1.0}


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
    assert desk.counts(REJECTED) == {reason: 1.0}


def test_all_counters_are_there_at_0_from_the_beginning(desk: Any) -> None:
    desk.house.take(desk.sessions.tick(desk.house.now))
    messages, rejected, *others = desk.house.state.values(0.0, MESSAGES, REJECTED, DUPLICATES, GAPS)
    assert messages == {(kind,): 0.0 for kind in KINDS}
    assert rejected == {(reason,): 0.0 for reason in (*REASONS, "kind")}
    assert others == [{(): 0.0}, {(): 0.0}]


def test_sessions_do_not_mix(desk: Any) -> None:
    first, second = Speaker("a", name="a"), Speaker("b", name="b")
    for who in (first, second):
        desk.greet(who)
    for number in (1, 2):
        desk.say(*first.batch(number))
    desk.say(*second.batch(1))
    assert desk.commit() == [answer("ack", 1), answer("ack", 2), answer("ack", 1)]


def test_a_session_answers_to_the_connection_that_it_last_spoke_on(desk: Any, who: Speaker) -> None:
    desk.say(*who.batch(1), peer=b"\0old")
    desk.say(*who.batch(2), peer=b"\0new")
    answers = [desk.sessions.committed(receipt) for receipt in desk.taken]
    assert [one[0] for one in answers] == [b"\0new", b"\0new"]


def test_a_hello_that_knows_of_more_than_this_daemon_goes_on_from_there(desk: Any, who: Speaker) -> None:
    desk.say(*who.batch(1))
    assert desk.greet(who, acked=10) == [answer("welcome", 10)]
    desk.say(*who.batch(11))
    assert desk.commit() == [answer("ack", 1), answer("ack", 11)]


def test_a_refusal_whose_answer_was_lost_is_told_again(desk: Any, who: Speaker) -> None:
    desk.say(*bad_body(who, 1))
    desk.say(*who.batch(2))
    assert desk.commit() == [answer("nack", 1, "body"), answer("ack", 2)]
    assert desk.say(*bad_body(who, 1)) == [answer("nack", 1, "body")]
    assert desk.say(*who.batch(2)) == [answer("ack", 2)]


def test_a_session_that_is_silent_for_an_hour_is_asked_for_a_hello(desk: Any, who: Speaker) -> None:
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
    loyal = Speaker("loyal")
    desk.greet(loyal)
    for number in range(1, count(100, 10_000)):
        desk.house.after += 0.01
        desk.greet(Speaker())
        assert desk.say(*loyal.batch(number)) == []
    assert len(desk.sessions._sessions) == 10


def test_each_sender_is_logged_once_for_each_reason_and_not_for_ever(
    desk: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "TOLD", 3)
    for _ in range(4):
        for peer in (b"a", b"b"):
            desk.say(b"trackside/9", peer=peer)
            desk.say(b"nonsense", peer=peer)
    assert len(caplog.messages) == 3
    assert caplog.messages[0] == (
        "a message was refused: version: got b'trackside/9', this side reads b'trackside/1';"
        " further ones from there are only counted"
    )
    assert desk.counts(REJECTED) == {"version": 8.0, "frames": 8.0}


def test_a_session_over_the_limit_of_runs_is_acknowledged_all_the_same(desk: Any) -> None:
    desk.house.runs._limits = desk.house.runs._limits._replace(runs=1)
    desk.greet(Speaker("a"))
    who = Speaker("b", name="late")
    assert desk.greet(who) == [answer("welcome")]
    assert desk.say(*who.batch(1)) == []
    assert desk.say(*bad_block(who, 2)) == []
    assert desk.commit() == [answer("ack", 1), answer("nack", 2, "block")]
    assert desk.house.has("late") == set()


def test_fields_of_a_later_version_are_passed_over(desk: Any, who: Speaker) -> None:
    frames = who.batch(1)
    body = msgspec.msgpack.decode(frames[2])
    body["mood"] = {"good": True}
    body["totals"]["future"] = 1
    assert desk.say(*frames[:2], msgspec.msgpack.encode(body)) == []
    assert desk.commit() == [answer("ack", 1)]


def test_numbers_at_the_end_of_their_range_are_taken(desk: Any) -> None:
    last = 2**64 - 1
    who = Speaker()
    assert desk.greet(who, acked=last - 1) == [answer("welcome", last - 1)]
    desk.say(*who.batch(last, step=1))
    assert desk.commit() == [answer("ack", last)]
    assert desk.say(*who.skip(1, last)) == [answer("ack", last)]


def test_a_hello_may_not_claim_less_than_nothing(desk: Any) -> None:
    who = Speaker()
    desk.greet(who, acked=-5)
    desk.say(*who.batch(1))
    assert desk.commit() == [answer("ack", 1)]


def test_a_receipt_of_a_session_that_was_forgotten_is_forgotten_too(desk: Any, who: Speaker) -> None:
    desk.say(*who.batch(1))
    desk.sessions._sessions.clear()
    assert desk.commit() == []


def test_a_body_without_its_blocks_is_refused(desk: Any, who: Speaker) -> None:
    body = {"clock": {"wall": 1, "monotonic": 1}, "totals": {}}
    desk.say(*who.frames("batch", None, 1)[:2], msgspec.msgpack.encode(body))
    assert desk.commit() == [answer("nack", 1, "body")]


@pytest.mark.parametrize(
    "totals",
    [Totals(overhead=float("nan")), Totals(overhead=-1.0), Totals(samples=float("nan")), Totals(steps=-1)],
    ids=["nan seconds", "negative seconds", "nan samples", "negative steps"],
)
def test_totals_that_no_counter_may_have_are_refused(desk: Any, who: Speaker, totals: Totals) -> None:
    desk.say(*who.frames("batch", Pushes(clock(), totals, []), 1))
    assert desk.commit() == [answer("nack", 1, "body")]


def test_a_session_id_alone_does_not_let_a_stranger_change_the_run(desk: Any, who: Speaker) -> None:
    stranger = Speaker("other", name="stranger")
    stranger.id = who.id
    desk.greet(stranger)
    assert desk.house.has("stranger") == set()


def test_what_is_said_again_and_again_grows_nothing(desk: Any, count: Callable[[int, int], int]) -> None:
    who = Speaker()
    for _ in range(count(200, 20_000)):
        desk.greet(who)
        desk.say(*replace_session(who.frames("beat", Beat(clock()))))
    assert (len(desk.sessions._sessions), len(desk.house.runs._sessions)) == (1, 1)


def replace_session(frames: list[bytes]) -> list[bytes]:
    """The same message of a session that nobody knows."""
    envelope = msgspec.msgpack.decode(frames[1], type=Envelope)
    return [frames[0], msgspec.msgpack.encode(replace(envelope, session=os.urandom(16))), frames[2]]
