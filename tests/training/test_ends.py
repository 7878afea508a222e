"""Ends of runs whose processes are watched: the state on the page, and the records for the history."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from wire_messages import WALL, FakeSession, RunsHarness

from trackside.wire import ProcessInfo
from trackside_daemon.model.records import Event, RunState
from trackside_daemon.model.session import process_of
from trackside_daemon.training.end_state import Exit
from trackside_daemon.training.run import TEARDOWN_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pytest

    from trackside_daemon.model.metric import Batch


def watched(house: RunsHarness, *speakers: FakeSession) -> FakeSession:
    """Let sessions whose processes are watched greet and push; return the first."""
    for session in speakers:
        house.runs.watch(process_of(session.identity))
        house.hello(session)
        house.push(session, {"loss": 1.0})
    house.records.clear()
    return speakers[0]


def exits(house: RunsHarness, session: FakeSession, code: int | None) -> None:
    """Report the exit of the process of *session*."""
    ended: Iterable[Batch] = house.runs.exited(process_of(session.identity), Exit(code), house.now.wall, house.now)
    house.accept(ended)


def leaves(house: RunsHarness, session: FakeSession, status: str = "finished", cause: str = "") -> None:
    """End the session of *session* with the provisional bye of its exit handler."""
    bye = session.bye(status, house.after)
    bye.cause, bye.provisional = cause, True
    house.close(session.id, bye)


def rank_ended(after: float, state: str, cause: str = "", rank: int = 0, **known: Any) -> Event:
    return Event("id-1", 0, WALL + after, "rank_ended", rank, fields={"state": state, "cause": cause, **known})


def test_the_silence_of_a_watched_process_means_nothing(house: RunsHarness, process: Any) -> None:
    watched(house, FakeSession(**process.identity))
    process.kill()
    house.wait(1e6)
    assert house.state_of() == "running"


def test_an_end_without_a_bye_is_shown_at_once_and_the_history_has_the_exit(house: RunsHarness) -> None:
    session = watched(house, FakeSession())
    house.after = 7.0
    exits(house, session, 3)
    assert (house.state_of(), house.state_of(rank="0")) == ("failed", "failed")
    assert house.get("end_timestamp_seconds") == WALL + 7
    assert house.records == [
        RunState("id-1", 0, "failed", "exit status 3", WALL + 7),
        rank_ended(7, "failed", "exit status 3", status=3),
    ]


def test_a_provisional_bye_is_sent_to_the_history_and_not_on_the_page_until_the_exit(house: RunsHarness) -> None:
    session = watched(house, FakeSession())
    house.after = 7.0
    leaves(house, session)
    assert house.records == [RunState("id-1", 0, "finished", "", WALL + 7), rank_ended(7, "finished")]
    assert (house.state_of(), house.state_of(rank="0")) == ("running", "running")
    assert house.get("end_timestamp_seconds") is None
    house.wait(2)
    assert house.state_of() == "running"
    exits(house, session, 0)
    assert house.state_of() == "finished"
    assert house.get("end_timestamp_seconds") == WALL + 7
    assert house.records[2:] == [RunState("id-1", 0, "finished", "", WALL + 7)], "the same end is reported once"


def test_a_bad_exit_after_a_provisional_bye_is_sent_to_both(house: RunsHarness) -> None:
    session = watched(house, FakeSession())
    leaves(house, session)
    exits(house, session, 3)
    assert house.state_of() == "failed"
    assert house.records[2:] == [
        RunState("id-1", 0, "failed", "exit status 3", WALL),
        rank_ended(0, "failed", "exit status 3", status=3),
    ]


def test_the_page_waits_for_a_teardown_no_longer_than_is_good(house: RunsHarness) -> None:
    session = watched(house, FakeSession())
    leaves(house, session)
    house.wait(TEARDOWN_SECONDS)
    assert house.state_of() == "running"
    house.wait(0.1)
    assert house.state_of() == "finished"
    exits(house, session, -signal.SIGSEGV)
    assert house.state_of() == "failed", "what is known later is shown all the same"


def test_an_exception_is_shown_at_once_and_is_the_cause_rather_than_the_status_that_follows(house: RunsHarness) -> None:
    session = watched(house, FakeSession())
    leaves(house, session, "failed", "ValueError")
    assert house.state_of() == "failed"
    exits(house, session, 1)
    assert house.state_of() == "failed"
    assert house.records == [RunState("id-1", 0, "failed", "ValueError", WALL), rank_ended(0, "failed", "ValueError")]


def test_a_bye_that_is_no_provisional_one_is_shown_at_once_and_stays(house: RunsHarness) -> None:
    session = watched(house, FakeSession())
    house.bye(session)
    assert house.state_of() == "finished"
    before = list(house.records)
    exits(house, session, 3)
    assert (house.state_of(), house.records) == ("finished", before)


def test_without_a_peer_a_provisional_bye_is_accepted_at_once(house: RunsHarness) -> None:
    session = house.greet()
    leaves(house, session)
    assert house.state_of() == "finished"


def test_an_unknown_exit_is_lost_and_after_a_bye_as_the_bye_states(house: RunsHarness) -> None:
    silent, polite = FakeSession("id-1", name="silent", pid=1), FakeSession("id-2", name="polite", pid=2)
    watched(house, silent, polite)
    leaves(house, polite)
    exits(house, silent, None)
    exits(house, polite, None)
    assert (house.state_of("silent"), house.state_of("polite")) == ("lost", "finished")
    assert rank_ended(0, "lost", "unknown") in house.records


def test_what_comes_after_the_exit_of_a_lost_one_does_not_bring_it_back(house: RunsHarness) -> None:
    """Messages of a session may wait in the socket when its process has exited."""
    session = watched(house, FakeSession())
    exits(house, session, None)
    house.push(session, {"loss": 0.5}, step=2)
    assert (house.state_of(), house.get("loss")) == ("lost", 0.5)
    leaves(house, session)
    assert house.state_of() == "finished"


def test_a_bye_that_is_read_after_the_exit_is_judged_with_it(house: RunsHarness) -> None:
    session = watched(house, FakeSession())
    exits(house, session, 1)
    assert house.state_of() == "failed"
    leaves(house, session, "failed", "ValueError")
    assert house.records[-2:] == [
        RunState("id-1", 0, "failed", "ValueError", WALL),
        rank_ended(0, "failed", "ValueError", status=1),
    ]


def test_all_sessions_of_a_process_end_with_it_and_no_others(house: RunsHarness) -> None:
    one, two = FakeSession("id-1", name="one", pid=1), FakeSession("id-2", name="two", pid=1)
    other = FakeSession("id-3", name="other", pid=2)
    watched(house, one, two, other)
    exits(house, one, -signal.SIGKILL)
    assert [house.state_of(name) for name in ("one", "two", "other")] == ["failed", "failed", "running"]


def test_the_worst_of_a_ranks_sessions_gives_its_cause(house: RunsHarness, start_process: Callable[[], Any]) -> None:
    main, worker = (FakeSession(**start_process().identity) for _ in range(2))
    watched(house, main, worker)
    exits(house, worker, -signal.SIGTERM)
    assert house.state_of() == "running"
    exits(house, main, -signal.SIGKILL)
    assert house.records[-1] == rank_ended(0, "failed", "SIGKILL", signal="SIGKILL")


def test_sigterm_is_the_usual_end_of_a_pools_worker_and_no_other_signal_is(house: RunsHarness) -> None:
    for pid, (number, state) in enumerate([(signal.SIGTERM, "finished"), (signal.SIGKILL, "failed")]):
        worker = FakeSession(pid=pid + 1)
        house.runs.watch(process_of(worker.identity))
        house.hello(worker, about=ProcessInfo(daemonic=True))
        exits(house, worker, -number)
        assert house.state_of() == state


def test_a_rank_that_waits_for_its_exit_makes_way_for_the_next_attempt(house: RunsHarness) -> None:
    session = watched(house, FakeSession(pid=1))
    leaves(house, session)
    again = FakeSession(pid=2)
    watched(house, again)
    assert house.get("run_info", *info(again, attempt=1)) == 1.0
    assert house.state_of() == "running"


def test_the_history_is_not_notified_that_a_run_was_given_up_which_had_ended(house: RunsHarness) -> None:
    first = [FakeSession(pid=rank + 1, rank=rank, world=2, local_world=2) for rank in range(2)]
    watched(house, *first)
    for session in first:
        leaves(house, session)
    house.records.clear()
    house.hello(FakeSession(pid=9, rank=0, world=2, local_world=2, attempt=1))
    assert not any(isinstance(one, RunState) and one.state == "lost" for one in house.records)


def test_the_log_has_each_end_once(house: RunsHarness, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    good, bad = FakeSession("id-1", name="good", pid=1), FakeSession("id-2", name="bad", pid=2)
    watched(house, good, bad)
    leaves(house, good)
    exits(house, good, 0)
    house.accept(house.runs.exited(process_of(bad.identity), Exit(-signal.SIGKILL, oom=True), WALL, house.now))
    reported = [(one.levelname, one.getMessage()) for one in caplog.records if " rank " in one.getMessage()]
    assert reported == [("INFO", "run good rank 0 finished"), ("WARNING", "run bad rank 0 failed: OOM killed")]


def info(session: FakeSession, attempt: int) -> tuple[str, ...]:
    """Return the labels of a run's info."""
    it = session.identity
    return "train", "id-1", str(attempt), str(it.world), it.host, it.git_commit, it.framework, it.job_id, "", ""
