"""Stalled ranks on the page and in the history; the detector that finds them is tested separately."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wire_messages import WALL, FakeSession, RunsHarness

from trackside.wire import Totals
from trackside_daemon.model.records import RunState
from trackside_daemon.model.stall import Stall

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def find(one: RunsHarness, ranks: Mapping[int, float | None]) -> None:
    """Report these ranks as the stalled ones, each with its last push, and tick."""
    one.runs.accept_stalls([Stall("id-1", 0, silent=frozenset(ranks), pushed=ranks)])
    one.wait(1)


def house(ranks: int = 1) -> tuple[RunsHarness, list[FakeSession]]:
    """Return a run whose ranks have pushed once, 1 s after the beginning."""
    one = RunsHarness()
    speakers = [FakeSession(rank=rank, world=ranks, local_world=ranks) for rank in range(ranks)]
    one.after = 1.0
    for session in speakers:
        one.hello(session)
        one.push(session, {"loss": 2.5})
    return one, speakers


def states(one: RunsHarness) -> list[str]:
    """Return the states that were sent to the history, without repetitions in a row."""
    answered = [record.state for record in one.records if isinstance(record, RunState)]
    return [state for before, state in zip([None, *answered], answered, strict=False) if state != before]


def test_a_rank_is_stalled_with_the_next_tick_and_runs_with_its_next_push() -> None:
    one, (session,) = house()
    find(one, {0: WALL + 1})
    assert (one.state_of(), one.state_of(rank="0")) == ("stalled", "stalled")
    reported = states(one)
    one.wait(60)
    assert states(one) == reported == ["starting", "running", "stalled"], "the history is notified once"
    one.push(session, {"loss": 2.5}, step=2)
    assert (one.state_of(), one.state_of(rank="0")) == ("running", "running"), (
        "though it is still found for the last push"
    )
    one.wait(1)
    assert one.state_of() == "running"
    assert states(one) == ["starting", "running", "stalled", "running"]


def test_a_run_is_stalled_when_all_its_ranks_are_that_live() -> None:
    one, speakers = house(3)
    find(one, {0: WALL + 1})
    assert (one.state_of(), one.state_of(rank="0"), one.state_of(rank="1")) == ("running", "stalled", "running")
    one.bye(speakers[2])
    find(one, dict.fromkeys(range(3), WALL + 1))
    assert (one.state_of(), one.state_of(rank="2")) == ("stalled", "finished")


def test_what_is_found_no_more_runs_though_it_has_not_pushed() -> None:
    one, _ = house()
    find(one, {0: WALL + 1})
    find(one, {})
    assert one.state_of() == "running"


def test_a_repeated_value_of_a_rank_is_no_step() -> None:
    one, (session,) = house()
    find(one, {0: WALL + 1})
    one.hello(session, step=1, progress_age=round(1e9))
    one.beat(session, totals=Totals(pushes=1, steps=1), step=1, progress_age=round(1e9))
    one.beat(session)
    assert one.state_of() == "stalled"
    assert one.get("last_step_timestamp_seconds") == WALL + 1


def test_a_run_without_a_step_can_be_stalled_too() -> None:
    one, session = RunsHarness(), FakeSession()
    one.hello(session)
    find(one, {0: None})
    assert one.state_of() == "stalled"
    find(one, {})
    assert one.state_of() == "starting"


def test_an_end_ends_it_and_stays() -> None:
    ends: list[Callable[[RunsHarness, FakeSession], None]] = [
        lambda one, session: one.bye(session, "failed"),
        lambda one, _: one.wait(60),
    ]
    for end, state in zip(ends, ("failed", "lost"), strict=True):
        one, session = RunsHarness(), FakeSession(boot="another-machine", start=1)
        one.hello(session)
        find(one, {0: None})
        assert one.state_of() == "stalled"
        end(one, session)
        one.wait(1)
        assert (one.state_of(), one.state_of(rank="0")) == (state, state)


def test_after_a_restart_of_the_daemon_it_is_never_running_between() -> None:
    one, session = RunsHarness(stalls=[Stall("id-1", 0, stalled=True, restored=True)]), FakeSession()
    one.hello(session, step=30, progress_age=round(400e9))
    assert one.state_of() == "stalled"
    assert states(one) == ["stalled"]


def test_a_run_s_state_is_sent_when_it_changes_and_not_with_each_rank_s() -> None:
    one, speakers = house(3)
    reported = len(one.records)
    find(one, dict.fromkeys(range(3), WALL + 1))
    for session in speakers:
        one.push(session, {"loss": 2.5}, step=2)
    assert [record.state for record in one.records[reported:] if isinstance(record, RunState)] == ["stalled", "running"]
    assert [one.state_of(rank=str(rank)) for rank in range(3)] == ["running"] * 3
