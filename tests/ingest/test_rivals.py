"""Two live processes that push as one rank of one run are kept apart; what only looks like two is not."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from ingest.conftest import PEER, SessionsHarness
from msgspec.structs import replace
from wire_messages import FakeSession

from trackside.wire import Hello, ProcessInfo, Welcome, decode_body
from trackside_daemon.history.read.attempts import StoredSession
from trackside_daemon.ingest.connection import Connection
from trackside_daemon.ingest.greeting import QUIET_SECONDS
from trackside_daemon.model.records import BatchIngested, Event, SessionOpened
from trackside_daemon.training.liveness import Liveness

if TYPE_CHECKING:
    from trackside.wire import Identity

SHELL = 1000  # the process that has started the others


@pytest.fixture
def exists(desk: Any, monkeypatch: pytest.MonkeyPatch) -> dict[int, bool | None]:
    """The processes that the daemon sees (True), sees to be gone, or cannot see (None), by pid; it sees all others."""
    found: dict[int, bool | None] = {}

    def is_alive(identity: Identity, _: object) -> bool | None:
        return found.get(identity.pid, True)

    desk.house.runs.exists = is_alive
    monkeypatch.setattr(Liveness, "is_gone", lambda _, identity: found.get(identity.pid, True) is False)
    return found


def training(pid: int, **identity: Any) -> FakeSession:
    return FakeSession("d11", name="d11", **{"pid": pid, "start": pid, **identity})


def hello(desk: Any, session: FakeSession, *parents: int) -> Hello:
    about = ProcessInfo(parents=tuple((parent, parent) for parent in parents))
    return replace(session.hello(desk.house.after), about=about)


def greet(desk: Any, session: FakeSession, *parents: int, **more: Any) -> str:
    """Receive a hello; return the run that the session gets, empty if it is to greet again."""
    body = replace(hello(desk, session, *(parents or (SHELL,))), **more)
    (answer, *_) = desk.receive(*session.frames("hello", body))
    if answer.kind == "hello?":
        return ""
    assert answer.kind == "welcome"
    return [run for id_, run in opened_runs(desk) if id_ == session.id][-1]


def opened_runs(desk: Any) -> list[tuple[bytes, str]]:
    """Return session and run of each record that opens a session."""
    return [(one.session.id, one.session.run) for one in desk.house.records if isinstance(one, SessionOpened)]


def events(desk: Any) -> list[tuple[str, dict[str, Any]]]:
    return [
        (one.run, dict(one.fields))
        for one in desk.house.records
        if isinstance(one, Event) and one.kind == "second_process"
    ]


@pytest.mark.usefixtures("exists")
def test_a_second_live_process_gets_a_run_of_its_own_and_both_are_warned(
    desk: Any, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = training(7), training(8)
    assert greet(desk, first) == "d11"
    answers, batches = desk.sessions.receive(
        Connection(PEER, os.getuid()), second.frames("hello", hello(desk, second, SHELL)), desk.house.now
    )
    desk.house.accept(batches)
    welcome: Welcome = decode_body("welcome", answers[0][3])
    host = first.identity.host
    assert welcome.run == "d11~2"
    assert welcome.why.startswith(f"process 7 on {host} pushes as rank 0 of the run d11, too; give each process an id")
    for session in (first, second):
        desk.receive(*session.batch(1))
    stored = [(one.session.run, one.session.name) for one in desk.house.records if isinstance(one, BatchIngested)]
    assert stored == [("d11", "d11"), ("d11~2", "d11-2")]
    assert events(desk) == [
        ("d11", {"process": f"8 on {host}", "run": "d11~2"}),
        ("d11~2", {"process": f"7 on {host}", "run": "d11"}),
    ]
    (line,) = [one.getMessage() for one in caplog.records if "pushes as this rank" in one.getMessage()]
    assert line == (
        f"run d11 rank 0: process 7 on {host} pushes as this rank, and so does process 8 on {host}, "
        "which gets the run d11-2 (id d11~2)"
    )
    assert (greet(desk, first), greet(desk, second)) == ("d11", "d11~2"), "which stays so as they connect again"
    assert greet(desk, training(9)) == "d11~3"
    assert len(events(desk)) == 4


@pytest.mark.usefixtures("exists")
def test_a_second_job_of_several_ranks_is_one_run_and_one_that_has_ended_is_not_resumed_by_the_next(desk: Any) -> None:
    ranks = [training(10 * job + rank, rank=rank, world=2, local_world=2) for job in (1, 2) for rank in (0, 1)]
    assert [greet(desk, one) for one in ranks] == ["d11", "d11", "d11~2", "d11~2"]
    for one in ranks[2:]:
        desk.receive(*one.frames("bye", one.bye(), 1))
    assert greet(desk, training(30, rank=0, world=2, local_world=2)) == "d11~3"


@pytest.mark.usefixtures("exists")
def test_processes_of_one_family_are_one_rank(desk: Any) -> None:
    parent, child, grandchild = training(7), training(8), training(9)
    assert greet(desk, child, 7, SHELL) == "d11"
    assert greet(desk, parent, SHELL) == "d11", "a parent that opens its session later"
    assert greet(desk, grandchild, 8, 7, SHELL) == "d11"
    assert greet(desk, training(10), 7, SHELL) == "d11", "a sibling, by their parent's session"
    assert greet(desk, training(7), SHELL) == "d11", "another session of the same process"
    assert greet(desk, training(11), SHELL) == "d11~2"
    assert len(events(desk)) == 2


def test_a_process_that_follows_another_is_no_second_one(desk: Any, exists: dict[int, bool | None]) -> None:
    before, after = training(7), training(8)
    greet(desk, before)
    exists[7] = False  # it was killed
    assert greet(desk, after) == "d11"
    desk.receive(*after.frames("bye", after.bye(), 1))
    assert greet(desk, training(9)) == "d11", "the session of a live process has ended"
    restarted = training(10, attempt=5)
    assert greet(desk, restarted) == "d11", "its launcher has counted a restart"
    opened = [one.session.attempt for one in desk.house.records if isinstance(one, SessionOpened)]
    assert (opened, events(desk)) == ([0, 1, 2, 5], [])


def test_of_a_process_that_cannot_be_seen_the_next_word_decides(desk: Any, exists: dict[int, bool | None]) -> None:
    first, second = training(7, boot="another"), training(8, boot="third")
    exists[7] = exists[8] = None
    greet(desk, first)
    assert greet(desk, second) == "", "it may be a restart of what has just died"
    desk.house.after = 1.0
    assert greet(desk, second) == ""
    desk.receive(*first.batch(1))
    assert greet(desk, second) == "d11~2"


def test_one_that_was_silent_and_speaks_again_is_the_second(desk: Any, exists: dict[int, bool | None]) -> None:
    first, second = training(7, boot="another"), training(8, boot="third")
    exists[7] = exists[8] = None
    greet(desk, first)
    desk.receive(*first.batch(1))
    assert greet(desk, second) == ""
    desk.house.after = QUIET_SECONDS + 1
    assert greet(desk, second) == "d11"
    desk.receive(*second.batch(1))
    (answer,) = desk.receive(*first.batch(2))
    assert answer.kind == "hello?"
    desk.kept[first.id] = StoredSession(1, 0, owner=f"uid:{os.getuid()}", run="d11")
    assert greet(desk, first) == "", "whether the second is live"
    desk.house.after += 1.0
    desk.receive(*second.batch(2))
    assert greet(desk, first) == "d11~2"
    stored = [one.session.run for one in desk.house.records if isinstance(one, BatchIngested)]
    assert stored == ["d11"] * 3


@pytest.mark.usefixtures("exists")
def test_after_a_restart_of_the_daemon_each_has_the_run_that_it_had(desk: SessionsHarness) -> None:
    first, second = training(7), training(8)
    for session, run in ((second, "d11~2"), (first, "d11")):
        desk.kept[session.id] = StoredSession(3, 0, owner=f"uid:{os.getuid()}", run=run)
    assert (greet(desk, second), greet(desk, first)) == ("d11~2", "d11")
    assert events(desk) == []


@pytest.mark.usefixtures("exists")
def test_an_older_client_reports_no_parents_and_is_left_alone(desk: Any) -> None:
    desk.greet(training(7))
    assert greet(desk, training(8)) == "d11"
    assert desk.greet(training(9))[0].kind == "welcome"
    assert {run for _, run in opened_runs(desk)} == {"d11"}


def test_two_that_ended_without_a_daemon_and_had_begun_together_stay_apart(desk: Any) -> None:
    sessions = [training(7), training(8)]
    hellos = {one.id: hello(desk, one, SHELL) for one in sessions}
    for batch in desk.sessions.open_spooled(hellos, desk.house.now):
        desk.house.accept([batch])
    runs = [run for _, run in opened_runs(desk)]
    assert runs == ["d11", "d11~2"]
    assert [greet(desk, one, late=True) for one in sessions] == runs
    assert [run for run, _ in events(desk)] == ["d11", "d11~2"]


def test_messages_of_a_spool_stay_in_its_attempt_while_the_run_continues(desk: Any) -> None:
    ended, lives = training(7), training(8)
    for batch in desk.sessions.open_spooled({ended.id: hello(desk, ended, SHELL)}, desk.house.now):
        desk.house.accept([batch])
    desk.past["d11"] = (0, 0.0)
    assert greet(desk, lives) == "d11"
    assert greet(desk, ended, late=True) == "d11"
    places = [(one.session.run, one.session.attempt) for one in desk.house.records if isinstance(one, SessionOpened)]
    assert places == [("d11", 0), ("d11", 1)]
