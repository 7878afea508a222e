"""Messages from a push to the daemon: greeting, resending, and the time while no daemon runs."""

from __future__ import annotations

import contextlib
import errno
import gc
import itertools
import logging
import math
import os
import signal
import socket
import threading
import time
import weakref
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from client.messages import forget_process_info, left_behind
from client.router import Router, pushed, rows, undrained
from processes import DEADLINE, Daemon, eventually

import trackside
from trackside import process_state
from trackside.captures import answers
from trackside.environment import discovery
from trackside.environment import process_info as info_module
from trackside.limits import BATCH_ROWS
from trackside.transport import outbox, sender
from trackside.transport import spool as spool_module
from trackside.transport.orphaned_spool import orphaned_sessions
from trackside.transport.resend_wait import LONGEST_SECONDS, SILENT_SECONDS, ResendWait
from trackside.transport.sender import Sender, SenderIntervals
from trackside.transport.spool import SpoolLimits
from trackside.wire import Envelope, MemorySnapshot, Nack, Refused, Welcome, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trackside.process_state import ProcessState
    from trackside.wire import Clock

SECOND = 1_000_000_000


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The messages logged by any logger."""
    return [record.getMessage().removeprefix("trackside: ") for record in caplog.records]


def in_background(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def turns(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Wait until senders without a daemon have looked for one *count* times more."""
    calls = itertools.count(1)
    done = threading.Event()
    find = discovery.find

    def counting(*arguments: Any) -> tuple[str | None, list[str]]:
        if next(calls) >= count:
            done.set()
        return find(*arguments)

    monkeypatch.setattr(discovery, "find", counting)
    assert done.wait(DEADLINE)
    monkeypatch.setattr(discovery, "find", find)


def wait_turns(run: trackside.Run, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Wait until the sender of a run has made *count* turns more."""
    session, turned = run.queue.session, threading.Semaphore(0)
    drain = session.drain

    def counting(clock: Clock, **how: bool) -> None:
        drain(clock, **how)
        turned.release()

    monkeypatch.setattr(session, "drain", counting)
    for _ in range(count):
        assert turned.acquire(timeout=DEADLINE)


@pytest.fixture
def pace(monkeypatch: pytest.MonkeyPatch) -> Callable[..., SenderIntervals]:
    """A function that gives the client other intervals from now on."""

    def changed(**seconds: float) -> SenderIntervals:
        intervals = SenderIntervals(**seconds)
        monkeypatch.setattr(process_state, "Sender", partial(Sender, intervals=intervals))
        return intervals

    return changed


IMPATIENT = {"drain": 0.02, "beat": 0.1, "answer": 0.8, "no_daemon": 1.2}


@pytest.fixture
def impatient(pace: Callable[..., SenderIntervals]) -> SenderIntervals:
    """A client with shorter intervals and timeouts."""
    return pace(**IMPATIENT)


@pytest.fixture
def run(router: Router) -> trackside.Run:
    """A run whose daemon a test controls."""
    return trackside.init(endpoint=router.endpoint)


@pytest.mark.usefixtures("impatient")
def test_a_hello_comes_first_and_nothing_else_before_the_welcome(router: Router) -> None:
    run = trackside.init("name", endpoint=router.endpoint)
    run.push(step=3, loss=0.5)
    first = router.expect("hello", passing=())
    again = router.expect("hello", passing=())
    assert again.session == first.session
    assert (first.body.identity.name, first.body.acked, first.number) == ("name", 0, 0)
    router.answer(again, "welcome", 0)
    batch = router.expect("batch")
    assert (batch.session, batch.number, list(rows(batch.body))) == (first.session, 1, [(3, {"loss": 0.5})])


def test_the_daemon_that_was_found_is_logged_with_the_reason(router: Router, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "trackside")
    trackside.init(endpoint=router.endpoint)
    router.welcome()
    eventually(lambda: caplog.records)
    assert logged(caplog) == [f"pushes go to {router.endpoint} (named by the program)"]


def test_pushes_go_out_in_order_and_are_done_with_once_they_are_acknowledged(
    router: Router, run: trackside.Run
) -> None:
    for step in range(3 * BATCH_ROWS):
        run.push(step=step, loss=step)
    ending = in_background(run.finish)
    (messages,) = router.serve().values()
    ending.join()
    assert [step for step, _ in pushed(messages)] == list(range(3 * BATCH_ROWS))
    assert [message.number for message in messages] == [0, *range(1, len(messages))]
    assert messages[-1].body.totals.pushes == 3 * BATCH_ROWS
    assert messages[-1].body.status == "finished"
    assert run.queue.session.done


def test_finish_waits_for_the_last_acknowledgement(router: Router, run: trackside.Run) -> None:
    run.push(loss=0.5)
    router.welcome()
    ending = in_background(run.finish)
    batch = router.expect("batch")
    bye = router.expect("bye")
    router.answer(batch, "ack", batch.number)
    assert ending.is_alive()
    assert not run.queue.session.done
    router.answer(bye, "ack", bye.number)
    ending.join()
    assert run.queue.session.done


@pytest.mark.parametrize("timeout", ["0", "0.1", "-1", "nan"])
def test_finish_waits_no_longer_than_its_timeout(
    router: Router, run: trackside.Run, monkeypatch: pytest.MonkeyPatch, timeout: str
) -> None:
    monkeypatch.setenv("TRACKSIDE_FLUSH_TIMEOUT", timeout)
    run.push(loss=0.5)
    router.welcome()
    run.finish()
    assert not run.queue.session.done
    router.expect("batch")
    bye = router.expect("bye")
    router.answer(bye, "ack", bye.number)
    eventually(lambda: run.queue.session.done)


def test_at_the_end_of_the_process_all_runs_share_one_time_to_flush(
    router: Router, monkeypatch: pytest.MonkeyPatch, process: ProcessState
) -> None:
    given: list[float] = []
    monkeypatch.setattr(Sender, "end", lambda *_, timeout, **__: given.append(timeout))
    clock = itertools.chain([100.0, 100.0, 101.5, 102.5], itertools.repeat(200.0))
    monkeypatch.setattr("trackside.process_state.monotonic", lambda: next(clock))
    for _ in range(3):
        trackside.init(endpoint=router.endpoint)
    process.exit()
    assert given == pytest.approx([1.5, 0.0, 0.0])  # the last quarter is for what has to be written to the spool


@pytest.mark.parametrize("killed", [False, True], ids=["nowhere", "a killed daemon has left its socket"])
def test_finish_returns_at_once_where_no_daemon_listens(
    nowhere: str, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    monkeypatch.setenv("TRACKSIDE_FLUSH_TIMEOUT", "inf")
    if killed:
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(nowhere.removeprefix("ipc://"))
    run = trackside.init(endpoint=nowhere)
    run.push(loss=0.5)
    run.finish()
    assert run.queue.session.retired


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("committed", [0, 2])
def test_a_daemon_that_asks_for_the_hello_gets_it_once_and_again_what_it_has_not_committed(
    router: Router, run: trackside.Run, committed: int
) -> None:
    router.welcome()
    asked = []
    for step in range(3):
        run.push(step=step, loss=step)
        asked.append(router.expect("batch"))
    assert [message.number for message in asked] == [1, 2, 3]
    for message in asked:
        router.answer(message, "hello?")
    hello = router.expect("hello").body
    assert (hello.acked, hello.step, hello.last, hello.totals.pushes) == (0, 2, {"loss": 2.0}, 3)
    router.answer(asked[0], "welcome", committed)
    again = [router.expect("batch") for _ in asked[committed:]]
    assert [(one.number, one.body) for one in again] == [(one.number, one.body) for one in asked[committed:]]
    router.answer(again[-1], "ack", 3)
    run.push(step=3, loss=3.0)
    batch = router.expect("batch")
    assert (batch.number, batch.body.totals.resent) == (4, 3 - committed)


@pytest.mark.usefixtures("impatient")
def test_a_run_of_its_own_is_named_with_its_reason_in_the_trainings_log(
    router: Router, caplog: pytest.LogCaptureFixture
) -> None:
    run = trackside.init("train", id="r", endpoint=router.endpoint)
    hello = router.expect("hello")
    for _ in range(2):
        router.answer(hello, "welcome", 0, Welcome((), "r~2", "process 7 on node1 is rank 0 of the run r\nalready"))
    run.push(loss=1.0)
    router.expect("batch")
    assert logged(caplog) == [
        "what this process pushes belongs to the run with the id r~2: process 7 on node1 is rank 0 of the run r already"
    ]
    assert run.id == "r"


def test_a_second_capture_is_refused_while_one_is_made_and_one_that_fails_with_the_reason(
    router: Router, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = threading.Event()

    def snapshot(_: None) -> MemorySnapshot:
        made.wait(DEADLINE)
        raise ValueError("a\nb")

    monkeypatch.setitem(answers.ANSWERS, "memory?", answers.ANSWERS["memory?"]._replace(make=snapshot))
    trackside.init(endpoint=router.endpoint)
    hello = router.welcome()
    for number in (1, 2):
        router.answer(hello, "memory?", number)
    refused = router.expect("memory", passing=("beat",))
    assert (refused.number, refused.body) == (2, MemorySnapshot([], [answers.OTHER_CAPTURE]))
    made.set()
    failed = router.expect("memory", passing=("beat",))
    assert (failed.number, failed.body) == (1, MemorySnapshot([], ["ValueError: a b"]))
    assert logged(caplog)[-1] == "the daemon's question memory? is not answered, training goes on: ValueError: a b"


def test_a_second_welcome_makes_nothing_go_again(router: Router, run: trackside.Run) -> None:
    hello = router.welcome()
    run.push(step=0, loss=0.5)
    assert router.expect("batch").number == 1
    router.answer(hello, "welcome", 0)
    run.push(step=1, loss=0.5)
    assert router.expect("batch").number == 2


def test_no_more_is_under_way_than_the_window_has_room_for(router: Router, run: trackside.Run) -> None:
    run.queue.session.spool.limits = SpoolLimits(window=4)
    with undrained(run):
        for step in range(9 * BATCH_ROWS):
            run.push(step=step, loss=0.5)
    hello = router.welcome()
    for acked, sent in ((0, [1, 2, 3, 4]), (2, [5, 6]), (6, [7, 8, 9])):
        router.answer(hello, "ack", acked)
        assert [router.expect("batch").number for _ in sent] == sent


def test_a_daemon_that_falls_silent_is_greeted_anew_and_gets_what_it_did_not_acknowledge(
    router: Router, pace: Callable[..., SenderIntervals]
) -> None:
    pace(**IMPATIENT, silent=0.8)
    run = trackside.init(endpoint=router.endpoint)
    hello = router.welcome()
    run.push(step=0, loss=0.5)
    first = router.expect("batch")
    again = router.expect("hello")
    assert (again.session, again.peer != hello.peer) == (hello.session, True)
    router.answer(again, "welcome", 0)
    assert router.expect("batch")[2:] == first[2:]


def test_a_daemon_that_answers_late_gets_few_hellos_and_all_on_one_connection(
    router: Router, monkeypatch: pytest.MonkeyPatch, pace: Callable[..., SenderIntervals]
) -> None:
    pace(**{**IMPATIENT, "beat": 0.02, "answer": 0.02})
    run = trackside.init(endpoint=router.endpoint)
    wait_turns(run, monkeypatch, 100)
    first = router.expect("hello")
    peers = [first.peer]
    while message := router.next(within=0.0):
        assert message.kind == "hello"
        peers.append(message.peer)
    assert set(peers) == {first.peer}
    # Each wait is 1.5 times as long as the one before it, at least, and a turn takes 0.02 s.
    assert len(peers) <= 1 + math.log(100 * 0.5, 1.5)
    router.answer(first, "welcome", 0)
    run.push(step=0, loss=0.5)
    assert router.expect("batch", passing=("beat", "hello")).peer == first.peer


def test_a_connection_that_is_not_made_yet_does_not_begin_anew(
    place: Path, monkeypatch: pytest.MonkeyPatch, pace: Callable[..., SenderIntervals]
) -> None:
    pace(**{**IMPATIENT, "answer": 0.02})
    endpoint = place / "push.sock"
    with socket.socket(socket.AF_UNIX) as busy:
        busy.bind(str(endpoint))
        busy.listen()  # the kernel connects; nobody answers the handshake
        run = trackside.init(endpoint=f"ipc://{endpoint}")
        wait_turns(run, monkeypatch, 20)
        busy.setblocking(False)
        greeted = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                with busy.accept()[0] as connection:
                    connection.setblocking(True)
                    greeted += connection.recv(1) == b"\xff"  # a ZeroMQ greeting; a search for the daemon sends nothing
    assert greeted == 1


@pytest.mark.usefixtures("impatient")
def test_a_session_without_progress_sends_again_although_the_daemon_answers_others(router: Router) -> None:
    stuck = trackside.init("stuck", endpoint=router.endpoint)
    hello = router.welcome()
    other = trackside.init("other", endpoint=router.endpoint)
    router.welcome()
    stuck.push(step=0, loss=0.5)
    first = router.expect("batch")
    answers = 0
    while True:
        other.push(loss=0.5)
        message = router.next()
        assert message is not None
        if message.session == hello.session:
            break
        router.answer(message, "ack", message.number)
        router.answer(hello, "ack", 0)
        answers += 1
    assert answers > 1
    assert message == first


@pytest.mark.usefixtures("impatient")
def test_a_refused_batch_is_counted_and_logged_once(
    router: Router,
    run: trackside.Run,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    process: ProcessState,
) -> None:
    monkeypatch.setenv("TRACKSIDE_FLUSH_TIMEOUT", "0")
    router.welcome()
    for step in range(2):
        run.push(step=step, loss=0.5, lr=0.1)
        batch = router.expect("batch")
        router.answer(batch, "nack", batch.number, Nack("body"))
        after = router.expect("batch")
        assert (after.body.blocks, after.body.totals.dropped) == ([], 2 * step + 2)
        router.answer(after, "ack", after.number)
    process.exit()
    assert logged(caplog) == [
        "the daemon refused message 1: body; its values are counted as dropped, and so are those of further ones"
    ]


REFUSED = encode(Envelope("refused", bytes(16)), Refused([2, 3]))


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("answer", "reads"), [(REFUSED, "2, 3"), ([b"trackside/2", b"", b""], "2"), ([b"trackside/2"], "2")]
)
def test_a_daemon_of_another_version_is_logged_once_and_training_goes_on(
    router: Router, run: trackside.Run, caplog: pytest.LogCaptureFixture, answer: list[bytes], reads: str
) -> None:
    run.push(loss=0.5)
    for _ in range(3):
        router.send(router.expect("hello", passing=()).peer, answer)
    eventually(lambda: caplog.records)
    router.answer(router.expect("hello", passing=()), "welcome", 0)
    assert list(rows(router.expect("batch", passing=("hello", "beat")).body)) == [(0, {"loss": 0.5})]
    (message,) = logged(caplog)
    assert message == (
        f"the daemon reads wire version {reads} and this client writes 1; install the same trackside in both places and"
        " restart the daemon; training goes on, and pushes are kept on disk"
    )


@pytest.mark.parametrize(
    "noise",
    [
        [b"noise"],
        [b""],
        [b"trackside/1", b"\xc1", b""],
        [b"trackside/1", encode(Envelope("ack", bytes(16), 7))[1], b""],
        encode(Envelope("refused", bytes(16)), Nack("no list")),
    ],
)
def test_answers_that_are_none_are_passed_over(
    router: Router, run: trackside.Run, caplog: pytest.LogCaptureFixture, noise: list[bytes]
) -> None:
    hello = router.expect("hello")
    router.send(hello.peer, noise)
    router.answer(hello, "nack", 1, Refused([1]))
    router.answer(hello, "welcome", 0)
    run.push(loss=0.5)
    router.expect("batch")
    assert not caplog.records


@pytest.mark.parametrize("is_stuck", [False, True])
def test_a_beat_comes_at_its_interval_and_carries_the_age_of_the_last_push(
    router: Router, pace: Callable[..., SenderIntervals], is_stuck: bool
) -> None:
    interval = pace(beat=0.3).beat
    run = trackside.init(endpoint=router.endpoint)
    hello = router.welcome()
    beats = [router.expect("beat", passing=()).body]
    assert beats[0].progress_age is None
    if is_stuck:
        run.queue.session.spool.limits = SpoolLimits(stuck_seconds=0.0)
    run.push(loss=0.5)
    batch = router.expect("batch")
    for _ in range(2):
        router.answer(hello, "ack", 0 if is_stuck else batch.number)
        beats.append(router.expect("beat", passing=("batch",)).body)
    moments = [beat.clock.monotonic for beat in beats]
    assert all(later - earlier >= interval * SECOND for earlier, later in itertools.pairwise(moments))
    pushed_at = batch.body.blocks[0].columns()[1][0]
    assert [beat.clock.monotonic - beat.progress_age for beat in beats[1:]] == [pushed_at] * 2
    assert [beat.totals is not None for beat in beats[1:]] == [is_stuck] * 2


@pytest.mark.usefixtures("impatient")
def test_beats_go_on_and_carry_the_newest_values_while_nothing_is_acknowledged(
    router: Router, run: trackside.Run
) -> None:
    run.queue.session.spool.limits = SpoolLimits(window=1, stuck_seconds=0.2)
    hello = router.welcome()
    run.push(step=1, loss=0.5)
    batch = router.expect("batch")
    reported = router.expect("beat", passing=())
    assert (reported.body.totals.pushes, reported.body.last, reported.body.step) == (1, {"loss": 0.5}, 1)
    run.push(step=2, loss=1)
    sent = 1
    steps: list[int] = []
    while sent < 4 or steps[-1] != 2:
        message = router.next(passing=())
        assert message is not None
        if message.kind == "batch":
            assert message == batch  # there is no room for the second
            sent += 1
        else:
            assert message.kind == "beat"
            steps.append(message.body.step)
            last = message.body.last
            router.answer(hello, "ack", 0)  # as a daemon that cannot write
    assert steps == sorted(steps)
    assert last == {"loss": 1.0}
    router.answer(hello, "ack", 1)
    after = router.expect("batch")
    assert (after.number, list(rows(after.body))) == (2, [(2, {"loss": 1.0})])
    router.answer(hello, "ack", 2)
    while (quiet := router.expect("beat", passing=("batch",))).body.totals is not None:
        pass
    assert (quiet.body.last, quiet.body.step) == ({}, None)


def test_the_program_is_identified_by_the_sender_once_without_any_wait(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    begun, opened = threading.Event(), threading.Event()
    command = info_module.command

    def delayed_command(arguments: list[str]) -> tuple[str, ...]:
        begun.set()
        calls.append((threading.current_thread().name, opened.wait(DEADLINE)))
        return command(arguments)

    forget_process_info()
    monkeypatch.setattr(info_module, "command", delayed_command)
    trackside.init(endpoint=router.endpoint)
    assert begun.wait(DEADLINE)
    trackside.init(endpoint=router.endpoint)
    opened.set()
    hellos = [router.welcome() for _ in range(2)]
    assert calls == [("trackside-sender", True)]
    assert [hello.body.about for hello in hellos] == [info_module.process_info()] * 2
    assert hellos[0].body.about.packages["zmq"]


@pytest.mark.usefixtures("impatient")
def test_a_run_that_has_ended_does_not_beat(router: Router) -> None:
    ending, living = trackside.init(endpoint=router.endpoint), trackside.init(endpoint=router.endpoint)
    ending.queue.session.spool.limits = SpoolLimits(stuck_seconds=0.0)
    for _ in range(2):
        router.welcome()
    finishing = in_background(ending.finish)
    bye = router.expect("bye")
    beats = [router.expect("beat", passing=()) for _ in range(3)]
    assert {beat.session for beat in beats} == {living.queue.session.id}
    router.answer(bye, "ack", bye.number)
    finishing.join()


def test_several_runs_share_one_socket_and_one_thread(router: Router) -> None:
    runs = [trackside.init(f"run-{number}", endpoint=router.endpoint) for number in range(5)]
    hellos = [router.welcome() for _ in runs]
    assert {hello.body.identity.name for hello in hellos} == {run.name for run in runs}
    assert len({hello.session for hello in hellos}) == 5
    assert len({hello.peer for hello in hellos}) == 1
    assert sum(thread.name == "trackside-sender" for thread in threading.enumerate()) == 1
    for number, run in enumerate(runs):
        run.push(step=number, loss=number)
    ends = [in_background(run.finish) for run in runs]
    reported = router.serve(ends=5)
    for end in ends:
        end.join()
    names = {hello.session: hello.body.identity.name for hello in hellos}
    assert {names[session]: pushed(messages) for session, messages in reported.items()} == {
        f"run-{number}": [(number, {"loss": float(number)})] for number in range(5)
    }


def test_a_run_that_begins_while_others_are_idle_is_greeted_without_waiting_for_a_beat(
    router: Router, pace: Callable[..., SenderIntervals]
) -> None:
    pace(beat=3600.0)
    trackside.init("one", endpoint=router.endpoint)
    router.welcome()
    trackside.init("two", endpoint=router.endpoint)
    assert router.welcome().body.identity.name == "two"


def test_the_endpoint_may_be_tcp() -> None:
    router = Router("tcp://127.0.0.1:*")
    try:
        run = trackside.init(endpoint=router.endpoint)
        run.push(loss=0.5)
        router.welcome()
        assert list(rows(router.expect("batch").body)) == [(0, {"loss": 0.5})]
    finally:
        router.close()


@pytest.mark.usefixtures("impatient")
def test_a_client_finds_another_daemon_when_its_own_is_gone_however_late_that_one_answered(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    class Observed(ResendWait):
        def grow(self) -> None:
            waited.append(self.seconds)
            super().grow()

    monkeypatch.setattr(sender, "ResendWait", Observed)
    monkeypatch.setattr(outbox, "monotonic", itertools.count(step=1000.0).__next__)
    monkeypatch.setattr(discovery, "directories", lambda *_: [place / "user", place / "system"])
    for name in ("user", "system"):
        (place / name).mkdir(mode=0o700)
    first, second = (Router(f"ipc://{place}/{name}/push.sock") for name in ("user", "system"))
    run = trackside.init()
    hello = first.welcome()
    run.push(loss=0.25)
    first.answer(first.expect("batch"), "ack", 1)
    eventually(lambda: not run.queue.session.pending)
    first.close()
    run.push(loss=0.5)
    assert second.welcome().session == hello.session
    assert list(rows(second.expect("batch").body)) == [(1, {"loss": 0.5})]
    second.close()
    assert IMPATIENT["answer"] in waited
    assert not {SILENT_SECONDS, LONGEST_SECONDS} & {*waited}, "these are for a connection that exists"


LINE = (
    "no daemon found at {}; training goes on, and what is pushed waits for one in {}, 256 MiB at most; start it with:"
    " trackside daemon"
)


@pytest.mark.usefixtures("impatient")
def test_without_a_daemon_one_line_names_where_it_was_sought_and_how_to_start_it(
    place: Path, spool: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    places = [place / name for name in ("nothing", "file", "dead", "open")]
    for directory in places[1:]:
        directory.mkdir(mode=0o700)
    (places[1] / "push.sock").touch()
    with socket.socket(socket.AF_UNIX) as dead, socket.socket(socket.AF_UNIX) as stranger:
        dead.bind(str(places[2] / "push.sock"))
        stranger.bind(str(places[3] / "push.sock"))
        places[3].chmod(0o777)
        monkeypatch.setattr(discovery, "directories", lambda *_: places)
        run = trackside.init()
        run.push(loss=0.5)
        eventually(lambda: caplog.records)
        turns(monkeypatch, 10)
    run.push(loss=0.25)
    run.finish()
    assert logged(caplog) == [
        LINE.format(
            f"{places[0]}/push.sock (not found), {places[1]}/push.sock (not a socket), "
            f"{places[2]}/push.sock (nobody listens there), "
            f"{places[3]}/push.sock (others may write to its directory)",
            spool,
        )
    ]


@pytest.mark.parametrize(
    ("endpoint", "reason"),
    [
        ("ipc://{place}/push.sock", "not found"),
        ("ipc://{place}/" + "x" * 200, "not found"),
        ("{place}/push.sock", "neither ipc://PATH nor tcp://HOST:PORT"),
        ("http://localhost:21790", "neither ipc://PATH nor tcp://HOST:PORT"),
        ("tcp://127.0.0.1:http", "neither ipc://PATH nor tcp://HOST:PORT"),
        ("tcp://127.0.0.1:99999", "neither ipc://PATH nor tcp://HOST:PORT"),
        ("tcp://127.0.0.1:9", "does not answer, or needs a key, and $TRACKSIDE_KEY_FILE names none"),
    ],
)
def test_a_useless_endpoint_is_logged_by_its_reason(
    place: Path,
    spool: Path,
    caplog: pytest.LogCaptureFixture,
    *,
    endpoint: str,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    pace: Callable[..., SenderIntervals],
) -> None:
    monkeypatch.setenv("TRACKSIDE_FLUSH_TIMEOUT", "0.1")
    pace(**{**IMPATIENT, "no_daemon": 0.3})
    endpoint = endpoint.format(place=place)
    run = trackside.init(endpoint=endpoint)
    run.push(loss=0.5)
    eventually(lambda: caplog.records)
    run.finish()
    (line,) = logged(caplog)
    reported, _, advice = line.partition("; start it with: ")
    assert reported == LINE.partition("; start")[0].format(f"{endpoint} ({reason})", spool)
    curable = reason == "not found" or reason.startswith("does not answer")
    assert advice == (f"trackside daemon --push.endpoint={endpoint}" if curable else "")


@pytest.mark.usefixtures("impatient")
def test_a_socket_with_an_owner_that_does_not_answer_is_logged_too(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(place / "push.sock"))
        mute.listen(1)
        run = trackside.init(endpoint=f"ipc://{place}/push.sock")
        run.push(loss=0.5)
        eventually(lambda: caplog.records)
        assert "push.sock (does not answer); training goes on" in logged(caplog)[0]
    assert len(caplog.records) == 1


def test_a_daemon_that_goes_away_for_long_is_missed_and_one_that_has_nothing_to_answer_is_not(
    impatient: SenderIntervals, router: Router, run: trackside.Run, caplog: pytest.LogCaptureFixture
) -> None:
    router.welcome()
    until = time.monotonic() + impatient.no_daemon + impatient.beat
    while time.monotonic() < until:
        router.expect("beat", passing=())
    assert not caplog.records
    router.close()
    run.push(loss=0.5)
    eventually(lambda: caplog.records)
    assert "nobody listens there" in logged(caplog)[0]


@pytest.mark.usefixtures("impatient")
def test_runs_that_have_ended_without_a_daemon_are_on_disk_and_do_not_pile_up_in_memory(
    nowhere: str, spool: Path, process: ProcessState
) -> None:
    sessions = []
    for number in range(30):
        run = trackside.init(f"run-{number}", endpoint=nowhere)
        run.push(loss=0.5)
        run.finish()
        sessions.append(weakref.ref(run.queue.session))
    del run
    gc.collect()
    assert sum(session() is not None for session in sessions) <= 1  # that of the default run, which `push` reads
    assert not process.queues
    assert {left.name for left in orphaned_sessions([spool], None)} == {f"run-{number}" for number in range(30)}


@pytest.mark.usefixtures("impatient")
def test_a_sender_that_fails_logs_it_counts_what_it_lost_and_tries_again(
    router: Router, run: trackside.Run, caplog: pytest.LogCaptureFixture
) -> None:
    rows = run.queue.session.rows
    with undrained(run):
        run.push(step=1, loss=0.5, lr=0.1)
        rows.append((0,))  # type: ignore[arg-type]
    router.welcome()
    eventually(lambda: caplog.records)
    (message,) = logged(caplog)
    assert message.startswith("sending was interrupted and is tried again, training goes on: IndexError: ")
    run.push(step=2, loss=0.25)
    end = in_background(run.finish)
    (messages,) = router.serve().values()
    end.join()
    assert pushed(messages) == [(2, {"loss": 0.25})]
    assert messages[-1].body.totals.dropped == 2


@pytest.mark.usefixtures("impatient")
def test_a_spool_directory_that_cannot_be_listed_for_a_while_stops_nothing(
    nowhere: str, monkeypatch: pytest.MonkeyPatch, spool: Path
) -> None:
    listed: list[Path] = []

    def scandir(path: Path) -> Iterator[os.DirEntry[str]]:
        listed.append(path)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    run = trackside.init(endpoint=nowhere)
    run.queue.session.spool.limits = SpoolLimits(stuck_seconds=0.0)
    with monkeypatch.context() as patch:
        patch.setattr("os.scandir", scandir)
        run.push(step=1, loss=0.5)
        eventually(lambda: listed)
    run.push(step=2, loss=0.25)
    run.finish()
    (left,) = eventually(lambda: list(orphaned_sessions([spool], None)))
    assert left.spool.last == 3  # two batches and the end


@pytest.mark.usefixtures("impatient")
def test_a_spool_directory_that_no_user_has_keeps_nothing_from_a_daemon_that_comes_later(
    place: Path, start_router: Callable[[], Router], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKSIDE_SPOOL", "~no-such-user/spool")
    run = trackside.init(endpoint=f"ipc://{place}/push.sock")
    run.push(step=1, loss=0.5)
    assert eventually(lambda: run.queue.session.spool.failure).startswith("$TRACKSIDE_SPOOL: ")
    router = start_router()
    end = in_background(run.finish)
    (messages,) = router.serve().values()
    end.join()
    assert pushed(messages) == [(1, {"loss": 0.5})]


def test_a_spool_with_a_refused_hello_stays_and_the_others_do_not_wait_for_it(router: Router, spool: Path) -> None:
    sessions = {left_behind(spool)[0].id for _ in range(2)}
    sending = Sender(router.endpoint, spools=[spool])
    try:
        refused = router.expect("hello")
        router.answer(refused, "nack", 0, Nack("owner"))
        (other,) = sessions - {refused.session}
        assert router.welcome().session == other
        router.answer(router.expect("batch"), "ack", 1)
        eventually(lambda: sending.sent)
        assert {path.name.partition(".")[0] for path in spool.iterdir()} == {refused.session.hex()}
    finally:
        sending.stop(1.0)


class Finishing(logging.Handler):
    """A log handler that ends a run when the main thread logs, while the sender has a message to log."""

    def __init__(self, run: Callable[[], trackside.Run]) -> None:
        super().__init__()
        self.run = run
        self.sender_logs = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "training":
            assert self.sender_logs.wait(DEADLINE)
            self.run().finish()

    def sees(self, _: logging.LogRecord) -> bool:
        """Note what the sender is about to log, which waits for the lock of this handler."""
        self.sender_logs.set()
        return True


def test_a_logging_handler_may_finish_a_run_while_the_sender_logs(
    nowhere: str, monkeypatch: pytest.MonkeyPatch, pace: Callable[..., SenderIntervals]
) -> None:
    monkeypatch.setenv("TRACKSIDE_FLUSH_TIMEOUT", "0.1")
    pace(no_daemon=0.0)
    handler = Finishing(lambda: opened)
    logging.getLogger("trackside").addFilter(handler.sees)
    logging.getLogger().addHandler(handler)
    try:
        with handler.lock or threading.RLock():
            opened = trackside.init(endpoint=nowhere)
            logging.getLogger("training").warning("SIGTERM")
    finally:
        logging.getLogger().removeHandler(handler)
        logging.getLogger("trackside").removeFilter(handler.sees)
    eventually(lambda: opened.queue.session.ended)


def series(daemon: Daemon, family: str, run: str = "night") -> float | None:
    return daemon.series().get(f'trackside_training_{family}{{rank="0",run="{run}"}}')


def grown(daemon: Daemon, total: float) -> float:
    """Wait until the steps exceed *total*, and return them."""
    return eventually(lambda: max(0.0, (series(daemon, "steps_total") or 0.0) - total)) + total


def test_pushing_continues_over_a_daemon_that_is_killed_in_the_midst_of_it_and_started_again(
    start_daemon: Callable[..., Daemon], caplog: pytest.LogCaptureFixture
) -> None:
    daemon = start_daemon()
    run = trackside.init("night", endpoint=daemon.endpoint)
    pause, stop = threading.Event(), threading.Event()
    steps = itertools.count(1)

    def train() -> None:
        while not stop.is_set():
            run.push(step=next(steps), loss=1.0, samples=32, grad_norm=float("nan"))
            pause.wait(0.001)

    training = in_background(train)
    total = 0.0
    for _ in range(3):
        total = grown(daemon, total)
        daemon.stop(signal.SIGKILL)
        daemon = start_daemon()
    grown(daemon, total)
    stop.set()
    training.join()
    last = next(steps)
    run.push(step=last, loss=0.125)
    eventually(lambda: series(daemon, "loss") == 0.125)
    assert series(daemon, "steps_total") == last
    assert series(daemon, "samples_total") == 32 * (last - 1)
    assert series(daemon, "client_dropped_total") == 0
    assert daemon.series()['trackside_training_nonfinite_total{key="grad_norm",rank="0",run="night"}'] == last - 1
    assert daemon.series()["trackside_ingest_gaps_total"] == 0
    run.finish()
    eventually(lambda: daemon.series()['trackside_training_state{run="night",state="finished"}'] == 1)
    assert daemon.values(run.id, "loss") == {**dict.fromkeys(range(1, last), 1.0), last: 0.125}
    assert not caplog.records


def test_a_daemon_started_late_is_found_in_the_users_own_directory_and_gets_everything(
    place: Path, start_daemon: Callable[..., Daemon], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place))
    monkeypatch.setattr(discovery, "directories", lambda environ, _: [Path(environ["XDG_RUNTIME_DIR"]) / "trackside"])
    run = trackside.init("night")
    for step in range(100):
        run.push(step=step, loss=1 / (step + 1))
    turns(monkeypatch, 3)
    directory = place / "trackside"
    directory.mkdir(mode=0o700)
    daemon = start_daemon(directory=directory)
    eventually(lambda: series(daemon, "loss") == 0.01)
    assert series(daemon, "steps_total") == series(daemon, "client_pushes_total") == 100
    run.finish()
    assert run.queue.session.done
    assert daemon.values(run.id, "loss") == {step: 1 / (step + 1) for step in range(100)}


def test_a_frozen_daemon_holds_up_neither_push_nor_finish(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trackside.init("night", endpoint=daemon.endpoint)
    run.push(step=0, loss=0.5)
    eventually(lambda: series(daemon, "loss") == 0.5)
    os.kill(daemon.process.pid, signal.SIGSTOP)
    try:
        monkeypatch.setenv("TRACKSIDE_FLUSH_TIMEOUT", "0.2")
        for step in range(10_000):
            run.push(step=step, loss=0.25)
        run.finish("stopped")
    finally:
        os.kill(daemon.process.pid, signal.SIGCONT)
    eventually(lambda: series(daemon, "loss") == 0.25)
    eventually(lambda: daemon.series()['trackside_training_state{run="night",state="stopped"}'] == 1)
    assert series(daemon, "steps_total") == 10_000


def test_a_disk_that_hangs_delays_neither_init_nor_push_nor_finish(
    nowhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKSIDE_FLUSH_TIMEOUT", "0.1")
    written, disk = threading.Event(), threading.Event()
    write = spool_module._write

    def hang(file: int, data: bytes) -> None:
        written.set()
        assert disk.wait(DEADLINE)
        write(file, data)

    monkeypatch.setattr(spool_module, "_write", hang)
    run = trackside.init("first", endpoint=nowhere)
    run.push(loss=0.5)
    run.finish()
    assert written.wait(DEADLINE)
    second = trackside.init("second", endpoint=nowhere)
    second.push(loss=0.5)
    second.finish()
    assert not run.queue.session.done
    disk.set()
    eventually(lambda: run.queue.session.retired and second.queue.session.retired)
