"""A run's life on the page: its states, its end, and the time for which its series stay."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any

import pytest
from wire_messages import WALL, FakeSession, RunsHarness, SeriesKey

from trackside.wire import Totals, WireError
from trackside_daemon.model.families import training as families
from trackside_daemon.model.records import Event, RunState

if TYPE_CHECKING:
    from trackside_daemon.model.metric import Batch

MARKS = {"state", "run_info", "end_timestamp_seconds"}


def ranks(count: int, **identity: Any) -> list[FakeSession]:
    return [FakeSession(rank=rank, world=count, local_world=count, **identity) for rank in range(count)]


def test_a_run_begins_as_starting_and_runs_with_its_first_push(house: RunsHarness) -> None:
    speaker = house.greet()
    assert (house.state_of(), house.state_of(rank="0")) == ("starting", "starting")
    assert house.get("start_timestamp_seconds") == WALL
    house.push(speaker, {"loss": 2.5})
    assert (house.state_of(), house.state_of(rank="0")) == ("running", "running")


def test_every_state_is_on_the_page_and_one_of_them_is_1(house: RunsHarness) -> None:
    house.hello(FakeSession())
    page = house.page()
    assert [page[SeriesKey("state", ("train", state))] for state in families.STATES] == [1.0, 0, 0, 0, 0, 0, 0]
    assert [page[SeriesKey("rank_state", ("train", "0", state))] for state in families.STATES] == [
        1.0,
        0,
        0,
        0,
        0,
        0,
        0,
    ]


def test_what_identifies_a_run_stands_on_its_info(house: RunsHarness) -> None:
    house.hello(
        FakeSession("id-7", host="box", git_commit="abc", framework="torch 2", job_id="99", world=2, local_world=2)
    )
    assert house.get("run_info", "train", "id-7", "0", "2", "box", "abc", "torch 2", "99", "", "") == 1.0


@pytest.mark.parametrize("status", ["finished", "stopped", "failed", "exploded"])
def test_a_bye_ends_a_run_with_its_status_and_one_that_is_unheard_of_is_a_failure(
    house: RunsHarness, status: str
) -> None:
    speaker = house.greet()
    house.after = 5.0
    house.bye(speaker, status)
    ended = "failed" if status == "exploded" else status
    assert (house.state_of(), house.state_of(rank="0")) == (ended, ended)
    assert house.get("end_timestamp_seconds") == WALL + 5


@pytest.mark.parametrize(
    ("ends", "state"),
    [
        (["finished", "finished"], "finished"),
        (["finished", "stopped"], "stopped"),
        (["stopped", "failed"], "failed"),
        (["failed", "finished"], "failed"),
        (["finished", ""], "starting"),
    ],
)
def test_a_run_lives_while_a_rank_does_and_then_ended_as_its_worst_rank(
    house: RunsHarness, ends: list[str], state: str
) -> None:
    both = ranks(2)
    for speaker in both:
        house.hello(speaker)
    for speaker, end in zip(both, ends, strict=True):
        if end:
            house.bye(speaker, end)
    assert house.state_of() == state


def test_a_rank_that_ended_retains_its_series_while_the_run_lives(house: RunsHarness) -> None:
    first, second = ranks(2)
    for speaker in (first, second):
        house.hello(speaker)
        house.push(speaker, {"loss": 1.0})
    house.bye(first)
    house.wait(1000)
    assert house.get("loss", "train", "0") == 1.0
    assert house.state_of(rank="0") == "finished"
    assert house.state_of() == "running"


def test_a_finished_run_lingers_and_then_only_its_marks_stay_for_15_minutes(house: RunsHarness) -> None:
    speaker = house.greet()
    house.push(speaker, {"loss": 2.5, "other": 1.0})
    house.bye(speaker)
    house.wait(59.9)
    assert house.get("loss") == 2.5
    house.wait(0.2)
    assert house.has("train") == MARKS
    house.wait(839.8)
    assert house.has("train") == MARKS
    assert house.state_of() == "finished"
    house.wait(0.2)
    assert house.page() == {}


def test_nothing_of_a_forgotten_run_stays_in_memory(house: RunsHarness) -> None:
    three = ranks(3)
    for speaker in three:
        house.hello(speaker)
        house.push(speaker, {"loss": 2.5, "other": 1.0})
    for speaker in three:
        house.bye(speaker)
    house.wait(901)
    assert house.page() == {}
    known = weakref.ref(house.sessions.popitem()[1].run)
    house.sessions.clear()
    gc.collect()
    assert known() is None


def test_a_linger_longer_than_the_marks_retains_all_of_the_run_as_long() -> None:
    house = RunsHarness(linger=3600.0)
    speaker = house.greet()
    house.push(speaker, {"loss": 2.5})
    house.bye(speaker)
    house.wait(3599)
    assert house.get("loss") == 2.5
    assert house.state_of() == "finished"


def test_a_linger_that_was_changed_holds_for_the_next_end(house: RunsHarness) -> None:
    speaker = house.greet()
    house.push(speaker, {"loss": 2.5})
    house.runs.linger = 5.0
    house.bye(speaker)
    house.wait(5.1)
    assert house.get("loss") is None


def test_a_killed_run_is_lost_after_three_silent_seconds(house: RunsHarness, process: Any) -> None:
    speaker = house.greet(**process.identity)
    house.push(speaker, {"loss": 2.5})
    process.kill()
    house.wait(2.9)
    assert house.state_of() == "running"
    house.wait(0.2)
    assert (house.state_of(), house.state_of(rank="0")) == ("lost", "lost")
    assert house.get("end_timestamp_seconds") == pytest.approx(WALL + 3.1)


def test_a_silent_run_with_a_live_process_is_not_lost(house: RunsHarness, process: Any) -> None:
    house.hello(FakeSession(**process.identity))
    house.wait(1e6)
    assert house.state_of() == "starting"


def test_a_beat_keeps_a_remote_run_and_thirty_seconds_without_lose_it(house: RunsHarness) -> None:
    speaker = house.greet(boot="another")
    house.wait(29)
    house.beat(speaker)
    house.wait(29)
    assert house.state_of() == "starting"
    house.wait(1)
    assert house.state_of() == "lost"


def test_a_lost_run_retains_its_series_for_five_minutes(house: RunsHarness) -> None:
    speaker = house.greet(boot="another")
    house.push(speaker, {"loss": 2.5})
    house.wait(30)
    house.wait(299)
    assert house.get("loss") == 2.5
    house.wait(2)
    assert house.has("train") == MARKS


@pytest.mark.parametrize(
    ("message", "state"),
    [
        (lambda house, speaker: house.beat(speaker), "running"),
        (lambda house, speaker: house.push(speaker, {"loss": 1.0}), "running"),
        (lambda house, speaker: house.hello(speaker), "running"),
        (lambda house, speaker: house.skip(speaker.id, Totals()), "running"),
        (lambda house, speaker: house.bye(speaker), "finished"),
    ],
    ids=["beat", "push", "hello", "skip", "bye"],
)
def test_a_run_that_was_thought_lost_is_back_with_any_message(house: RunsHarness, message: Any, state: str) -> None:
    speaker = house.greet(boot="another")
    house.push(speaker, {"loss": 2.5})
    house.wait(30)
    message(house, speaker)
    assert (house.state_of(), house.state_of(rank="0")) == (state, state)
    assert (house.get("end_timestamp_seconds") is None) is (state == "running")


def test_a_run_that_is_back_after_its_series_were_forgotten_has_its_start_again(house: RunsHarness) -> None:
    speaker = house.greet(boot="another")
    house.push(speaker, {"loss": 2.5})
    house.wait(30)
    house.wait(400)
    assert house.has("train") == MARKS
    house.push(speaker, {"loss": 1.5}, step=2)
    assert house.get("loss") == 1.5
    assert house.get("start_timestamp_seconds") == WALL
    house.wait(29)
    assert house.get("loss") == 1.5


def test_a_refused_batch_of_a_lost_run_does_not_half_bring_it_back(house: RunsHarness) -> None:
    speaker = house.greet(boot="another")
    house.wait(30)
    bad = speaker.pushes({"loss": 1.0})
    bad.blocks[0].values = b""
    with pytest.raises(WireError):
        house.ingest(speaker.id, bad)
    assert house.state_of() == "lost"
    house.beat(speaker)
    assert house.state_of() == "starting"


def test_a_rank_may_join_a_run_with_other_ranks_that_have_ended(house: RunsHarness) -> None:
    first, second = ranks(2)
    house.hello(first)
    house.push(first, {"loss": 1.0})
    house.bye(first)
    house.wait(30)
    house.hello(second)
    assert house.state_of() == "starting"
    house.wait(1000)
    assert house.get("loss", "train", "0") == 1.0, "the run lives, so nothing of it is forgotten"
    assert [one.labels[2] for one in house.page() if one.family == "run_info"] == ["0"]


def test_a_rank_that_begins_again_beside_a_living_one_continues_its_counters(house: RunsHarness) -> None:
    first, second = ranks(2)
    for speaker in (first, second):
        house.hello(speaker)
        house.push(speaker, {"loss": 1.0}, steps=10)
    house.bye(first, "failed")
    again = ranks(2)[0]
    house.hello(again)
    assert house.state_of(rank="0") == "starting"
    house.push(again, {"loss": 0.5}, steps=3)
    house.push(second, {"loss": 0.75}, steps=11)
    assert house.get("steps_total") == 13.0
    assert house.get("loss", "train", "1") == 0.75, "messages of the other rank still count"
    house.bye(again)
    assert house.state_of(rank="0") == "finished", "as its last session ended, and not as the one before"


def test_a_message_of_an_unknown_run_is_ignored(house: RunsHarness) -> None:
    speaker = FakeSession()
    house.push(speaker, {"loss": 1.0})
    house.beat(speaker)
    house.bye(speaker)
    house.skip(speaker.id, Totals())
    assert house.page() == {}


def test_an_ended_run_that_greets_again_is_forgotten_in_time_all_the_same(house: RunsHarness) -> None:
    speaker = house.greet()
    house.push(speaker, {"loss": 1.0})
    house.bye(speaker)
    house.hello(speaker, last={"loss": 1.0}, step=1, progress_age=0)
    assert house.state_of() == "finished"
    house.wait(61)
    assert house.has("train") == MARKS


def test_a_hello_cannot_speak_for_another_rank(house: RunsHarness) -> None:
    speaker, other = FakeSession(), FakeSession(rank=7)
    house.hello(speaker)
    other.id = speaker.id
    house.hello(other, last={"loss": 1.0}, step=1, progress_age=0)
    assert house.get("loss", "train", "7") is None
    house.bye(speaker)
    house.wait(61)
    assert house.has("train") == MARKS


def test_a_tick_without_news_reports_nothing(house: RunsHarness) -> None:
    house.hello(FakeSession())
    batches: list[Batch] = house.runs.tick(house.now)
    assert batches == []


def test_a_beat_moves_the_page_while_the_batches_wait(house: RunsHarness) -> None:
    speaker = house.greet()
    house.after = 9.0
    house.beat(speaker, progress_age=500_000_000, totals=Totals(pushes=7, steps=7), last={"loss": 0.5}, step=7)
    assert (house.state_of(), house.get("step"), house.get("loss"), house.get("steps_total")) == ("running", 7, 0.5, 7)
    assert house.get("last_step_timestamp_seconds") == WALL + 8.5


def test_a_beat_without_totals_changes_nothing(house: RunsHarness) -> None:
    speaker = house.greet()
    house.push(speaker, {"loss": 2.5})
    before = house.page()
    house.after = 9.0
    house.beat(speaker, progress_age=500_000_000)
    assert house.page() == before


def test_the_history_is_notified_of_a_lost_rank_and_of_its_return(house: RunsHarness) -> None:
    speaker = house.greet(boot="another")
    house.push(speaker, {"loss": 1.0})
    house.wait(30)
    assert house.records[-2:] == [
        RunState("id-1", 0, "lost", "unknown", WALL + 30),
        Event("id-1", 0, WALL + 30, "rank_ended", 0, fields={"state": "lost", "cause": "unknown"}),
    ]
    house.beat(speaker)
    assert house.records[-1] == RunState("id-1", 0, "running")


def test_the_history_is_notified_of_every_state_of_a_run(house: RunsHarness) -> None:
    speaker = house.greet()
    house.push(speaker, {"loss": 1.0})
    house.push(speaker, {"loss": 1.0})
    house.bye(speaker, "stopped")
    states = [one.state for one in house.records if isinstance(one, RunState)]
    assert states == ["starting", "running", "stopped"]


def test_the_cause_of_an_end_is_reported(house: RunsHarness) -> None:
    both = ranks(2)
    for speaker in both:
        house.hello(speaker)
    for speaker, cause in zip(both, ("ValueError", ""), strict=True):
        bye = speaker.bye("failed")
        bye.cause = cause
        house.close(speaker.id, bye)
    assert house.records[-2:] == [
        RunState("id-1", 0, "failed", "ValueError", WALL),
        Event("id-1", 0, WALL, "rank_ended", 1, fields={"state": "failed", "cause": ""}),
    ]


def test_a_session_is_attached_while_its_run_is_exported(house: RunsHarness) -> None:
    first, second = FakeSession("a"), FakeSession("b")
    for speaker in (first, second):
        house.hello(speaker)
    opened = [house.sessions[speaker.id] for speaker in (first, second)]
    assert [(session.run.name, session.run.attempt) for session in opened] == [("train", 0), ("train-2", 0)]
    house.bye(second)
    house.wait(901)
    assert [session.attached for session in opened] == [True, False]


@pytest.mark.parametrize(
    ("past", "launcher", "attempt"),
    [
        (None, 0, "0"),
        (None, 3, "3"),
        ((2, 99.0), 0, "3"),
        ((2, None), 0, "2"),
        ((2, 99.0), 9, "9"),
        ((0, None), 1, "1"),
    ],
)
def test_attempts_go_on_where_an_earlier_daemon_ended(
    past: tuple[int, float | None] | None, launcher: int, attempt: str
) -> None:
    house = RunsHarness(past=lambda _: past)
    house.hello(FakeSession(attempt=launcher))
    assert [one.labels[2] for one in house.page() if one.family == "run_info"] == [attempt]
