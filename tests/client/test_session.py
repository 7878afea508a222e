"""A session: how pushes become messages, and that none is lost or doubled between client and daemon."""

from __future__ import annotations

import os
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

import pytest
from client.messages import (
    CLOCK,
    NO_DISK,
    Daemon,
    a_session,
    batches,
    fill,
    later,
    numbers,
    push,
    pushed,
    read,
    rows,
    send,
)

from trackside.environment.process_info import process_info
from trackside.limits import BATCH_ROWS, IN_FLIGHT
from trackside.totals.phases import WAITED, PhaseMark
from trackside.totals.session_totals import Deferred, SessionTotals
from trackside.transport import outbox
from trackside.transport.batch import BATCH_BYTES, ROW_KEYS
from trackside.transport.kept_rows import encoded, with_kept_rows
from trackside.transport.orphaned_spool import orphaned_sessions
from trackside.transport.resend_wait import ANSWER_SECONDS, LONGEST_SECONDS, ResendWait
from trackside.transport.session import KEY_BYTES, Session
from trackside.transport.spool import PENDING_BYTES
from trackside.wire import (
    GATHER_SECONDS,
    MESSAGE_BYTES,
    Bye,
    Clock,
    Envelope,
    Heartbeat,
    Hello,
    Identity,
    Pushes,
    Skip,
    Totals,
    decode_body,
    encode,
    open_envelope,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

INF = float("inf")


def drained(session: Session, values: Mapping[Any, float], step: int, time: int = 0) -> None:
    """Push values, and drain them."""
    push(session, values, step, time)
    session.drain(CLOCK)


def test_pushes_of_the_same_keys_are_one_block_in_order() -> None:
    session = a_session()
    for step in range(3):
        push(session, {"loss": step / 2, "lr": 1}, step, time=step + 7)
    session.drain(CLOCK)
    (batch,) = batches(session)
    assert [block.keys for block in batch.blocks] == [["loss", "lr"]]
    assert list(rows(batch)) == [(step, step + 7, {"loss": step / 2, "lr": 1.0}) for step in range(3)]
    assert batch.clock == CLOCK
    assert batch.totals.pushes == 3
    assert open_envelope(session.pending[0].frames) == Envelope("batch", session.id, 1)


def test_a_push_of_other_keys_or_another_order_of_them_begins_a_block() -> None:
    session = a_session()
    pushes: list[dict[str, float]] = [{"a": 1.0}, {"a": 2.0, "b": 3.0}, {"b": 4.0, "a": 5.0}, {"a": 6.0}]
    for step, values in enumerate(pushes):
        push(session, values, step)
    session.drain(CLOCK)
    assert [block.keys for block in batches(session)[0].blocks] == [["a"], ["a", "b"], ["b", "a"], ["a"]]
    assert [values for _, _, values in pushed(session)] == pushes


def test_nothing_pushed_is_nothing_to_send() -> None:
    session = a_session()
    session.drain(CLOCK)
    session.drain(CLOCK)
    assert not session.pending
    assert session.next_to_send() is None


def test_a_batch_closes_at_its_number_of_rows() -> None:
    session = a_session()
    for step in range(2 * BATCH_ROWS + 1):
        push(session, {"loss": step}, step)
    session.drain(CLOCK)
    assert [sum(1 for _ in rows(batch)) for batch in batches(session)] == [BATCH_ROWS, BATCH_ROWS, 1]
    assert [batch.totals.pushes for batch in batches(session)] == [BATCH_ROWS, 2 * BATCH_ROWS, 2 * BATCH_ROWS + 1]
    assert [step for step, _, _ in pushed(session)] == list(range(2 * BATCH_ROWS + 1))


@pytest.mark.parametrize("key", ["key", "ключ", "😀"])
def test_a_batch_closes_at_its_number_of_bytes(key: str) -> None:
    session = a_session()
    for step in range(400):
        push(session, {f"{key}/{step % 7}/{number}": step for number in range(500)}, step)
    session.drain(CLOCK)
    assert len(session.pending) > 5
    assert max(message.size for message in session.pending) < 2 * BATCH_BYTES
    assert len(pushed(session)) == 400


@pytest.mark.parametrize("count", [ROW_KEYS, ROW_KEYS + 1, 2 * ROW_KEYS, 10 * ROW_KEYS + 5])
def test_a_push_of_very_many_keys_travels_as_several_rows_of_one_step(count: int) -> None:
    session = a_session()
    values = {f"layer/{number}": float(number) for number in range(count)}
    drained(session, values, 5, time=9)
    assert {(step, time) for step, time, _ in pushed(session)} == {(5, 9)}
    assert max(len(part) for _, _, part in pushed(session)) <= ROW_KEYS
    assert {key: value for _, _, part in pushed(session) for key, value in part.items()} == values
    assert session.totals.pushes == session.totals.steps == 1
    assert max(message.size for message in session.pending) < MESSAGE_BYTES / 4


def test_a_push_of_very_long_keys_outgrows_no_message() -> None:
    session = a_session()
    values = {f"{number:04}" + "я" * (KEY_BYTES // 2 - 2): float(number) for number in range(200)}
    drained(session, values, 5)
    assert {key: value for _, _, part in pushed(session) for key, value in part.items()} == values
    assert max(message.size for message in session.pending) < MESSAGE_BYTES / 4
    assert len(session.hello(CLOCK)[2]) < MESSAGE_BYTES / 4


@pytest.mark.parametrize("bad", [float("nan"), 1.0])
def test_however_many_keys_come_no_message_outgrows_what_a_daemon_accepts(bad: float) -> None:
    session = a_session()
    for step in range(300):
        push(session, {"🦆" * 250 + f"/{step}/{number}": bad for number in range(40)}, step)
    session.drain(CLOCK)
    send(session)
    frames = [session.hello(CLOCK), session.beat(later(2.0)), *(message.frames for message in session.pending)]
    assert decode_body("beat", frames[1][2]).last
    assert max(sum(map(len, one)) for one in frames) < MESSAGE_BYTES / 2


def test_the_window_bounds_what_is_under_way() -> None:
    session = a_session()
    for step in range((IN_FLIGHT + 10) * BATCH_ROWS):
        push(session, {"loss": 1.0}, step)
    session.drain(CLOCK)
    assert numbers(send(session)) == list(range(1, IN_FLIGHT + 1))
    session.acknowledged(3)
    assert numbers(send(session)) == [IN_FLIGHT + 1, IN_FLIGHT + 2, IN_FLIGHT + 3]
    session.acknowledged(IN_FLIGHT + 3)
    assert numbers(send(session)) == list(range(IN_FLIGHT + 4, IN_FLIGHT + 11))
    session.acknowledged(IN_FLIGHT + 10)
    assert not session.pending
    assert session.size == 0
    assert not session.in_flight


def three_batches() -> Session:
    session = a_session()
    for step in range(3):
        drained(session, {"loss": 1.0, "lr": 0.1}, step)
    return session


def test_after_a_rewind_everything_pending_is_sent_again_from_the_oldest_and_is_counted() -> None:
    session = three_batches()
    assert numbers(send(session)) == [1, 2, 3]
    session.acknowledged(1)
    session.rewind()
    assert numbers(send(session)) == [2, 3]
    assert session.totals.resent == 2
    session.rewind()
    session.acknowledged(2)
    assert numbers(send(session)) == [3]
    assert session.totals.resent == 3


def test_an_unacknowledged_batch_is_sent_again_after_a_while_and_an_acknowledgement_begins_the_wait_anew() -> None:
    session = three_batches()
    session.resend_after(2.0, 100.0)
    send(session)
    for moment in (103.0, 105.0):
        session.resend_after(2.0, moment)
        assert session.next_to_send() is None
    session.resend_after(2.0, 105.5)
    assert numbers(send(session)) == [1], "an overloaded daemon has the others still before it"
    session.acknowledged(1)
    session.resend_after(2.0, 108.0)
    assert session.next_to_send() is None
    session.resend_after(2.0, 110.1)
    assert numbers(send(session)) == [2, 3], "they were lost"


def test_a_daemon_that_answers_late_gets_the_oldest_message_again_and_no_other() -> None:
    session = three_batches()
    send(session)
    session.resend_after(2.0, 100.0)
    again = []
    for moment in (102.1, 104.2, 106.3):
        assert session.resend_after(2.0, moment)
        again += numbers(send(session))
    session.acknowledged(2)
    session.resend_after(2.0, 106.4)
    assert session.next_to_send() is None, "all are in flight as before"
    assert session.resend_after(2.0, 108.5)
    again += numbers(send(session))
    session.acknowledged(3)
    drained(session, {"loss": 1.0}, 9)
    assert numbers(send(session)) == [4]
    assert again == [1, 1, 1, 3]


def test_a_message_that_had_to_come_again_makes_the_next_wait_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = [100.0]
    monkeypatch.setattr(outbox, "monotonic", lambda: moment[0])
    session, wait = three_batches(), ResendWait()
    session.resend_after(wait.seconds, moment[0])
    send(session)

    def resent() -> list[int]:
        """Wait until something is sent again, and return its numbers."""
        session.resend_after(wait.seconds, moment[0])
        moment[0] += wait.seconds + 0.01
        assert session.resend_after(wait.seconds, moment[0])
        wait.grow()
        return numbers(send(session))

    def acknowledge(number: int, latency: float) -> float:
        moment[0] += latency
        assert session.acknowledged(number)
        wait.reset(2 * session.answer_seconds)
        return wait.seconds

    assert [resent() for _ in range(5)] == [[1]] * 5
    assert wait.seconds == LONGEST_SECONDS
    assert acknowledge(1, 0.05) == ANSWER_SECONDS, "the daemon had no room for it before, and answers at once"
    assert resent() == [2, 3], "it has read neither"
    assert acknowledge(2, 0.05) == ANSWER_SECONDS
    assert acknowledge(3, 2.0) == pytest.approx(2 * 2.05), "it needs this long"
    drained(session, {"loss": 1.0}, 3)
    drained(session, {"loss": 1.0}, 4)
    send(session)
    assert resent() == [4]
    assert acknowledge(5, 0.05) == ANSWER_SECONDS, "what it answered before was lost, and 4 made it answer again"


def test_an_acknowledgement_of_what_is_known_or_was_never_sent_does_no_harm() -> None:
    session = three_batches()
    send(session)
    for number in (2, 1, 0, 2):
        session.acknowledged(number)
        assert numbers(list(session.pending)) == [3]
    session.acknowledged(1000)
    assert not session.pending
    assert decode_body("hello", session.hello(CLOCK)[2]).acked == 3
    drained(session, {"loss": 1.0}, 9)
    assert numbers(send(session)) == [4]


def beat(session: Session, clock: Clock) -> Heartbeat:
    reported: Heartbeat = decode_body("beat", session.beat(clock)[2])
    assert (reported.clock, reported.totals is not None) == (clock, session.is_stuck(clock))
    return reported


def test_a_beat_carries_the_content_of_messages_that_wait_longer_than_a_second() -> None:
    session = three_batches()
    send(session)
    assert beat(session, later(1.0)).totals is None
    reported = beat(session, later(1.1))
    assert (reported.totals, reported.last, reported.step) == (session.totals, {"loss": 1.0, "lr": 0.1}, 2)
    push(session, {"loss": 10**300}, 3)
    assert beat(session, later(1.2)).step == 2
    session.drain(later(1.3))
    reported = beat(session, later(1.3))
    assert reported.totals is not None
    assert (reported.totals.pushes, reported.last, reported.step) == (4, {"loss": 1e300, "lr": 0.1}, 3)
    session.acknowledged(4)
    assert beat(session, later(9.0)).totals is None


def test_a_session_stays_stuck_however_often_it_sends_again_until_its_oldest_message_is_acknowledged() -> None:
    session = three_batches()
    send(session)
    for moment in range(2, 10):
        session.resend_after(2.0, float(moment))
        assert session.is_stuck(later(moment))
        send(session)
    assert session.totals.resent > 0
    session.acknowledged(2)
    push(session, {"loss": 1.0}, 3)
    session.drain(later(10.0))
    send(session)
    assert session.is_stuck(later(10.0))  # the third was sent long ago
    session.acknowledged(3)
    assert not session.is_stuck(later(11.0))
    assert session.is_stuck(later(11.1))
    session.rejected(4)
    assert not session.is_stuck(later(99.0))


def test_a_session_stays_stuck_while_its_memory_overflows() -> None:
    session = a_session(NO_DISK)
    fill(session, 5)
    send(session)
    for moment in range(2, 20):
        fill(session, 5)
        assert session.is_stuck(later(moment))
    assert read(session.pending[0])[0].kind == "skip"
    resent = session.totals.resent
    send(session)
    assert session.totals.resent == resent  # nothing of what is left was sent before


def test_a_refused_batch_is_counted_as_dropped_and_never_sent_again() -> None:
    session = three_batches()
    send(session)
    session.rejected(2)
    assert session.totals.dropped == 2
    session.rewind()
    assert numbers(send(session)) == [3]
    session.rejected(2)
    assert session.totals.dropped == 2


def test_a_hello_carries_all_that_a_daemon_needs() -> None:
    session = a_session()
    drained(session, {"loss": 2.0, "lr": 0.1}, 7, time=CLOCK.monotonic - 500)
    drained(session, {"loss": 1.0}, 8, time=CLOCK.monotonic - 300)
    session.acknowledged(1)
    frames = session.hello(CLOCK)
    assert open_envelope(frames) == Envelope("hello", session.id, 0)
    hello = decode_body("hello", frames[2])
    assert isinstance(hello, Hello)
    assert (hello.identity, hello.clock, hello.acked) == (Identity("run", "name"), CLOCK, 1)
    assert (hello.config, hello.tags, hello.total_steps) == ('{"lr": 0.1}', ("tag",), 100)
    assert (hello.last, hello.step, hello.progress_age) == ({"loss": 1.0, "lr": 0.1}, 8, 300)
    assert hello.totals == session.totals
    assert hello.about == process_info()


def test_large_ints_travel_as_the_floats_that_they_are() -> None:
    session = a_session()
    values = {"a": 10**300, "b": 2**64, "c": -(2**63) - 1, "d": 3}
    drained(session, values, 1)
    floats = {"a": 1e300, "b": 2.0**64, "c": -(2.0**63), "d": 3.0}
    assert pushed(session) == [(1, 0, floats)]
    assert decode_body("hello", session.hello(CLOCK)[2]).last == floats


def test_progress_has_no_age_before_the_first_push_and_no_negative_one_after_it() -> None:
    session = a_session()
    hello = decode_body("hello", session.hello(CLOCK)[2])
    assert (hello.step, hello.progress_age, hello.last) == (None, None, {})
    assert decode_body("beat", session.beat(CLOCK)[2]).progress_age is None
    push(session, {"loss": 2.0}, 7, time=CLOCK.monotonic + 500)  # after the clock was read
    session.drain(CLOCK)
    assert decode_body("beat", session.beat(CLOCK)[2]).progress_age == 0


def test_the_end_is_the_last_message_and_what_comes_after_it_is_not_sent() -> None:
    session = a_session()
    push(session, {"loss": 1.0}, 0)
    session.end(CLOCK, "failed", "ValueError", provisional=True)
    envelope, bye = read(session.pending[-1])
    assert envelope == Envelope("bye", session.id, 2)
    # A test before this one may have called sys.exit.
    assert bye == Bye(CLOCK, session.totals, "failed", "ValueError", provisional=True, requested=bye.requested)
    assert bye.totals.pushes == 1
    assert (session.ended, session.done) == (True, False)
    session.acknowledged(2)
    assert session.done


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        ({"good": 1.0, "\ud800": 2.0}, ["good"]),
        ({"good": 1.0, 7: 2.0}, ["good"]),
        ({None: 2.0, "good": 1.0, ("a",): 2.0}, ["good"]),
        ({b"bytes": 2.0, "good": 1.0}, ["good"]),
        ({"k" * (KEY_BYTES + 1): 2.0, "k" * KEY_BYTES: 1.0}, ["k" * KEY_BYTES]),
        ({"я" * KEY_BYTES: 2.0, "good": 1.0, "": 3.0}, ["good", ""]),
        ({"nul\0": 1.0, "new\nline": 1.0, "😀": 1.0}, ["nul\0", "new\nline", "😀"]),
    ],
)
def test_a_key_that_cannot_travel_costs_only_itself(values: dict[Any, float], kept: list[str]) -> None:
    session = a_session()
    for step in range(2):
        drained(session, values, step)
    assert [list(part) for _, _, part in pushed(session)] == [kept, kept]
    assert session.totals.dropped == 2 * (len(values) - len(kept))
    assert bool(session.warnings) == (len(kept) < len(values))
    assert decode_body("hello", session.hello(CLOCK)[2]).last.keys() == {key for key in kept if len(key) < 256}


class Name(str):
    """A key as NumPy and enumerations have them: a str, but not quite."""

    __slots__ = ()

    def __str__(self) -> str:
        return "something else"


def test_a_key_of_a_class_derived_from_str_travels_as_its_text() -> None:
    session = a_session()
    pushes: list[dict[str, float]] = [{"loss": 1.0}, {Name("loss"): 2.0}, {Name("new"): 3.0}, {Name("new"): INF}]
    for step, values in enumerate(pushes):
        drained(session, values, step)
    assert [list(values) for _, _, values in pushed(session)] == [["loss"], ["loss"], ["new"], ["new"]]
    hello = decode_body("hello", session.hello(CLOCK)[2])
    assert (hello.last.keys(), hello.totals.nonfinite) == ({"loss", "new"}, {"new": 1})


def test_rows_that_are_counted_but_absent_are_reported_once() -> None:
    session = a_session()
    push(session, {}, 1)
    push(session, {}, 2)
    session.refused += 3
    session.drain(CLOCK)
    session.drain(CLOCK)
    (batch,) = batches(session)
    assert (batch.blocks, batch.totals.steps, batch.totals.pushes, batch.totals.dropped) == ([], 2, 2, 3)


def test_beyond_its_memory_the_oldest_go_one_skip_names_them_and_the_loss_is_counted() -> None:
    session = a_session(NO_DISK)
    fill(session, 100)
    assert session.size <= PENDING_BYTES
    assert session.size == sum(message.size for message in session.pending)
    envelope, skip = read(session.pending[0])
    assert isinstance(skip, Skip)
    assert (envelope.kind, skip.first) == ("skip", 1)
    kept = list(session.pending)[1:]
    assert numbers(kept) == list(range(envelope.number + 1, kept[-1].number + 1))
    assert all(read(message)[0].kind == "batch" for message in kept)
    assert session.totals.dropped == 100 * 8 * 514 - sum(message.values for message in kept)
    assert skip.totals == session.totals
    assert PENDING_BYTES - session.size < 2 * BATCH_BYTES


def test_a_skip_and_all_that_follows_it_are_sent_in_one_window_after_another() -> None:
    session = a_session(NO_DISK)
    daemon = Daemon()
    fill(session, 10)
    send(session)
    fill(session, 100)
    last = session.pending[-1].number
    while session.pending:
        for message in send(session):
            daemon.receive(message)
        session.acknowledged(daemon.commit())
    assert daemon.committed == last
    assert len(daemon.gaps) == 1
    assert len(daemon.values) + session.totals.dropped == 110 * 8 * 514


def test_a_full_memory_and_no_news_drops_nothing_more() -> None:
    session = a_session(NO_DISK)
    fill(session, 80)
    before = (session.totals.dropped, session.size, len(session.pending))
    session.drain(CLOCK)
    session.drain(CLOCK)
    assert (session.totals.dropped, session.size, len(session.pending)) == before


def test_another_hello_names_the_gpus_that_values_have_come_from() -> None:
    session = a_session()
    session.greeted = True
    session.asked_at = 5.0
    session.drain(CLOCK)
    assert session.greeted
    session.gpus += ["GPU-bb", "GPU-bb", "GPU-aa"]
    session.drain(CLOCK)
    assert (session.greeted, session.asked_at) == (False, -INF)
    assert decode_body("hello", session.hello(CLOCK)[2]).identity.gpus == ("GPU-bb", "GPU-aa")


def test_another_hello_carries_what_is_learnt_of_a_run_after_its_beginning() -> None:
    session = Session(Identity("run", "name"), '{"seed": 1}', total_steps=10)
    session.greeted = True
    session.drain(CLOCK)
    assert session.greeted
    session.describe('{"seed": 1, "layers": 2}')
    session.drain(CLOCK)
    assert not session.greeted
    hello = decode_body("hello", session.hello(CLOCK)[2])
    assert (hello.config, hello.total_steps) == ('{"seed": 1, "layers": 2}', 10)
    session.describe(total_steps=20)
    hello = decode_body("hello", session.hello(CLOCK)[2])
    assert (hello.config, hello.total_steps) == ('{"seed": 1, "layers": 2}', 20)


def test_gpus_of_the_first_hello_are_not_sent_again_and_at_the_end_no_other_hello_is_waited_for() -> None:
    known = Session(Identity("run", "name", gpus=("GPU-aa",)))
    ending = a_session()
    for session in (known, ending):
        session.greeted = True
        session.gpus.append("GPU-aa")
    known.drain(CLOCK)
    ending.end(CLOCK, "finished", "", provisional=False)
    assert known.greeted
    assert ending.greeted


def test_rows_are_collected_for_as_long_as_the_daemon_requests() -> None:
    session = a_session()
    session.gather = 1.0
    drained(session, {"loss": 1.0}, 1)
    assert len(batches(session)) == 1  # the first at once, so that the run appears
    for step, moment in ((2, 0.2), (3, 0.4), (4, 0.8)):
        push(session, {"loss": 1.0}, step)
        session.drain(later(moment))
    assert len(batches(session)) == 1
    session.drain(later(1.0))
    assert [[step for step, *_ in rows(batch)] for batch in batches(session)] == [[1], [2, 3, 4]]


def test_a_value_that_becomes_nan_is_sent_at_once_and_one_that_stays_nan_is_not() -> None:
    session = a_session()
    session.gather = 2.0
    for step, loss in enumerate((1.0, 1.0, float("nan"), float("nan"))):
        push(session, {"loss": loss}, step)
        session.drain(later(0.2 * step))
    assert [[step for step, *_ in rows(batch)] for batch in batches(session)] == [[0], [1, 2]]


@pytest.mark.parametrize("last", ["end", "retire"])
def test_collected_values_are_sent_with_the_end(last: str, tmp_path: Path) -> None:
    session = a_session(tmp_path)
    session.gather = 2.0
    for step in range(3):
        push(session, {"loss": 1.0}, step)
        session.drain(later(0.2 * step))
    if last == "end":
        session.end(later(0.5), "finished", "", provisional=False)
    else:
        session.retire(later(0.5))
    assert [step for step, *_ in pushed(session)] == [0, 1, 2]


def test_another_daemon_begins_with_the_usual_time() -> None:
    session = a_session()
    session.gather = 2.0
    session.disconnected()
    assert session.gather == GATHER_SECONDS


def left_by_a_kill(session: Session, spool: Path) -> list[tuple[Envelope, Any]]:
    """Return the messages that are in the files of a session, once the kernel has released its lock."""
    assert session.spool._kept is not None
    os.close(session.spool._kept._lock)
    session.spool._kept._lock = -1
    (orphan,) = orphaned_sessions([spool], None)
    orphan.acknowledged(0)
    return [read(message) for message in orphan.pending]


def test_of_a_killed_process_the_pushes_are_left_that_it_had_kept(spool: Path) -> None:
    session, same = a_session(spool), a_session()
    late = Deferred(None, ("b", "loss"))
    waiting: list[tuple[int, Any, Any]] = [
        (2_000, None, {"loss": 2.0, "nothing yet": object()}),
        (3_000, late, {"b": 3.0}),
        (3_000, WAITED, None),
        (4_000, late, {"loss": 3.5}),
        (5_000, 9, {"loss": float("inf"), "samples": 32}),
        (6_000, Deferred(1, ("epoch/loss",), aside=True), {"epoch/loss": 0.5}),
    ]
    for one in (session, same):
        one.greeted, one.asked_at = True, 1.0
        for step in range(4):
            push(one, {"loss": step}, step, 1_000)
        one.drain(CLOCK)
    assert session.keeps
    session.rows.extend(waiting)
    session.keep(lambda: later(0.04), spool)
    session.keep(lambda: later(0.08), spool)
    for time, step, values in waiting[:2] + waiting[3:]:
        same.rows.append((time, step, {key: value for key, value in values.items() if type(value) is not object}))
    same.drain(later(0.2))
    assert (spool / f"{session.id.hex()}.0.spool").stat().st_mode & 0o777 == 0o600
    (first, before), (second, last) = left_by_a_kill(session, spool)
    assert (first.number, second.number) == (1, 2)
    assert before == batches(same)[0]
    assert with_kept_rows([b"1", b"2", b"3", b"damaged"]) == [b"1", b"2", b"3"]
    assert [list(rows(last)), last.totals] == [list(rows(batches(same)[1])), batches(same)[1].totals]


def test_more_kept_rows_than_a_daemon_accepts_cost_nothing_but_themselves() -> None:
    batch = encode(Envelope("batch", bytes(16), 1), Pushes(CLOCK, Totals(), []))
    many: list[tuple[int, int, dict[str, float]]] = [(1, 1, {"k": 1})] * (MESSAGE_BYTES // 24 + 1)
    assert with_kept_rows([*batch, encoded(SessionTotals(), many[:9])]) != batch
    assert with_kept_rows([*batch, encoded(SessionTotals(), many)]) == batch


def test_what_is_kept_changes_no_time_of_a_phase(spool: Path) -> None:
    session, same = a_session(spool), a_session()
    began = monotonic_ns()

    def at(seconds: float) -> Clock:
        return Clock(CLOCK.wall, began + round(seconds * 1e9))

    for one in (session, same):
        one.greeted, one.asked_at = True, 1.0
        for step in range(4):
            push(one, {"loss": step}, step, 1_000)
        one.rows.append((began, PhaseMark(enters=True, phase="data"), None))
        one.drain(at(0.0))
        push(one, {"loss": 4.0}, 4, at(0.01).monotonic)
        one.rows.append((at(0.01).monotonic, PhaseMark(enters=False, phase="data"), None))
        one.rows.append((at(0.02).monotonic, PhaseMark(enters=True, phase="eval"), None))
        one.rows.append((at(0.03).monotonic, PhaseMark(enters=False, phase="eval"), None))
    session.keep(lambda: at(0.04), spool)
    session.keep(lambda: at(0.08), spool)
    for one in (session, same):
        one.drain(at(0.2), everything=True)
    assert session.totals.phases == pytest.approx(same.totals.phases, abs=0.005)
    assert session.totals.phases["eval"] == pytest.approx(0.01)


@pytest.mark.parametrize("greeted", [True, False])
def test_what_is_kept_goes_once_the_spool_has_more(spool: Path, greeted: bool, tmp_path: Path) -> None:
    session = a_session(tmp_path / "spool")
    session.greeted, session.asked_at = True, 1.0
    for step in range(4):
        push(session, {"loss": step}, step)
    session.drain(CLOCK)
    push(session, {"loss": 4.0}, 4)
    session.keep(lambda: CLOCK, spool)
    session.greeted = greeted
    for moment in (0.3, 1.3):
        for step in range(5):
            push(session, {"loss": step}, 5 + step)
        session.drain(later(moment))
        assert bool(session.spool.last) == (moment > 1 or not greeted)
        assert bool(list(spool.iterdir())) != bool(session.spool.last)
    assert session.unspooled_values == 0


def test_what_is_kept_stays_while_a_batch_is_collected_that_the_spool_does_not_have(
    spool: Path, tmp_path: Path
) -> None:
    session = a_session(tmp_path / "spool")
    session.greeted, session.asked_at = True, 1.0
    push(session, {"loss": 0.0}, 0)
    session.drain(CLOCK)
    session.gather = 60.0
    for step in range(1, 5):
        push(session, {"loss": step}, step)
    session.keep(lambda: CLOCK, spool)
    session.drain(later(1.3))
    assert session.spool.last == 1
    _, (_, last) = left_by_a_kill(session, spool)
    assert [step for step, *_ in rows(last)] == [1, 2, 3, 4]


def test_what_is_kept_of_a_batch_that_is_full_goes_although_the_next_one_is_collected(
    spool: Path, tmp_path: Path
) -> None:
    """The end of the process would stand behind it, under a number that the spool has."""
    session = a_session(tmp_path / "spool")
    session.greeted, session.asked_at = True, 1.0
    push(session, {"loss": 0.0}, 0)
    session.drain(CLOCK)
    session.gather = 60.0
    push(session, {"loss": 1.0}, 1)
    session.keep(lambda: CLOCK, spool)
    assert list(spool.iterdir())
    for step in range(2, BATCH_ROWS + 10):
        push(session, {"loss": step}, step)
    session.drain(later(1.3))
    assert session.spool.last == 2
    assert not list(spool.iterdir())


def test_what_is_kept_goes_with_the_end_and_what_cannot_be_kept_costs_nothing(spool: Path) -> None:
    session, without = a_session(), a_session()
    for one, place in ((session, spool), (without, NO_DISK)):
        one.greeted, one.asked_at = True, 1.0
        push(one, {"loss": 1.0}, 1)
        one.keep(lambda: CLOCK, place)
        push(one, {"loss": 2**70}, 2)
        one.keep(lambda: CLOCK, place)
        one.drain(CLOCK)
        one.acknowledged(1)
        assert one.totals.dropped == 0
        assert [step for step, *_ in pushed(one)] == []
    assert len(list(spool.iterdir())) == 2
    session.spool.close()
    assert list(spool.iterdir()) == []
