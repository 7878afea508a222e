"""Runs and ranks that fall silent, by the pace that they have had."""

from __future__ import annotations

import pytest
from detectors.running import ID, Running

from trackside_daemon.detectors.run_watch import RunWatch
from trackside_daemon.model.families import training as f
from trackside_daemon.model.metric import Distribution, Sample
from trackside_daemon.model.text import moment


def trained(ranks: int = 1, steps: int = 30, every: float = 1) -> Running:
    """Return a run that has made some steps."""
    run = Running(ranks)
    for step in range(steps):
        run.push(step, *range(ranks))
        run.wait(every)
    return run


def test_a_run_that_makes_no_step_is_first_a_warning_and_then_critical() -> None:
    run = trained()
    run.wait(26)
    assert not run.trouble
    run.wait(4)
    assert [alarm.severity for alarm in run.trouble] == ["warning"]
    run.wait(33)
    assert [alarm.severity for alarm in run.trouble] == ["warning", "critical"]
    alarm = run.trouble[-1]
    assert (alarm.alert, alarm.labels, alarm.run) == ("TrainingStalled", (("run", "net"),), ID)
    since = moment(alarm.evidence["since"], " %Z")
    assert alarm.summary == f"run net has made no step since {since}, after step 29", "it does not grow old"
    assert "`trackside why net` asks the ranks where they are now" in alarm.description
    assert alarm.description.startswith("Until then a step took 1 s on average, and no pause was longer than 1 s.")
    run.wait(3600)
    assert len(run.trouble) == 2, "reported once"


def test_steps_so_fast_that_few_gaps_are_seen_have_a_pace() -> None:
    run = Running()
    run.push(0)
    run.wait(1)
    run.push(300)
    run.wait(26)
    assert not run.trouble
    run.wait(4)
    assert [alarm.severity for alarm in run.trouble] == ["warning"]


def test_it_is_over_when_a_step_is_made() -> None:
    run = trained()
    run.wait(100)
    run.push(30)
    run.wait(1)
    (over,) = run.findings_of("TrainingStalled", over=True)
    assert over.summary == "run net is no longer stalled: step 30"


def test_slow_steps_have_a_longer_deadline() -> None:
    run = trained(steps=20, every=40)
    run.wait(75)
    assert not run.trouble, "3 times what is usual is 120 s, and 40 of them are those of the last step"
    run.wait(10)
    run.wait(85)
    assert [alarm.severity for alarm in run.trouble] == ["warning", "critical"]


def test_a_training_that_pushes_seldom_is_not_stalled_between() -> None:
    run = Running()
    for step in range(0, 2000, 100):
        run.push(step)
        run.wait(500)
    assert not run.trouble


def test_pauses_are_learnt() -> None:
    run = trained()
    for step in range(30, 3000):
        run.push(step)
        run.wait(300 if step % 500 == 0 else 1)
    assert len(run.findings_of("TrainingStalled")) == 2, "the first one only: a warning, and then critical"
    assert len(run.findings_of("TrainingStalled", over=True)) == 1


def test_a_pause_that_is_marked_as_a_phase_is_no_stall_even_the_first_time() -> None:
    run = trained()
    for second in range(1000):
        run.beat(0, forward=30.0, eval=float(second))
        run.wait(1)
    run.push(31)
    run.wait(10)
    assert not run.trouble


def test_a_pause_that_does_not_end_is_a_stall() -> None:
    run = trained()
    for second in range(1900):
        run.beat(0, eval=float(second))
        run.wait(1)
    assert run.trouble[-1].severity == "critical"
    assert run.trouble[-1].summary.endswith(", in the phase eval")


def test_a_second_pause_that_takes_much_longer_than_the_first_is_a_stall() -> None:
    run = trained()
    for second in range(100):
        run.beat(0, eval=float(second), forward=30.0)
        run.wait(1)
    run.beat(0, eval=100.0, forward=60.0)
    for step in range(30, 200):
        run.push(step)
        run.wait(1)
    for second in range(620):
        run.beat(0, eval=100.0 + second)
        run.wait(1)
    assert run.trouble[-1].severity == "critical"


def test_the_first_steps_may_take_half_an_hour() -> None:
    run = Running()
    run.wait(1000)
    assert not run.trouble
    run.wait(900)
    since = moment(run.trouble[-1].evidence["since"], " %Z")
    assert run.trouble[-1].summary == f"run net has not made its first step since {since}"


@pytest.mark.parametrize(("start_up", "allowed"), [(20, 600), (200, 1000), (1200, 1800)])
def test_a_new_attempt_may_take_some_times_as_long_to_begin_as_the_one_before(start_up: int, allowed: int) -> None:
    first = Running()
    first.wait(start_up)
    first.push(0)
    first.marks("stopped")
    again = Running(attempt=1, watch=first.watch)
    again.now = first.now
    again.wait(0.9 * allowed)
    assert [one.severity for one in again.trouble] == ["warning"]
    again.wait(0.2 * allowed)
    assert again.trouble[-1].severity == "critical"


def test_a_run_that_has_ended_is_not_stalled() -> None:
    run = trained()
    run.state(0, "finished")
    run.marks("finished")
    run.wait(7200)
    assert not run.trouble


def test_an_end_ends_a_stall() -> None:
    run = trained()
    run.wait(100)
    run.marks("stopped")
    assert run.findings_of("TrainingStalled", over=True)


def test_a_rank_that_waits_for_a_dead_one_is_not_stalled_too() -> None:
    run = trained(2)
    run.report("rank_ended", 1, state="failed", cause="SIGKILL")
    run.state(1, "failed")
    run.wait(600)
    assert {alarm.alert for alarm in run.trouble} == {"TrainingProcessDied"}


def test_64_ranks_that_stop_are_one_alert_that_names_those_behind() -> None:
    run = trained(64)
    run.push(30, *(rank for rank in range(64) if rank != 17))
    run.wait(100)
    assert {alarm.alert for alarm in run.trouble} == {"TrainingStalled"}
    assert ": rank 17 is furthest behind, at step 29" in run.trouble[-1].summary


def test_several_that_are_behind_are_named() -> None:
    run = trained(8)
    run.push(30, *range(6))
    run.wait(100)
    assert ": ranks 6 and 7 are furthest behind, at step 29" in run.trouble[-1].summary


def test_its_speed_is_reported_in_real_numbers() -> None:
    run = Running()
    for step in range(1, 1001):
        run.push(step)
        if step % 20 == 0:
            run.wait(1)
    run.wait(100)
    answered = run.trouble[-1].description
    assert "Until then a step took 49 ms on average, and no pause was longer than 1 s." in answered


@pytest.mark.parametrize(
    ("phases", "reported"),
    [
        ({}, "all 4 ranks are at step 29"),
        (dict.fromkeys(range(4), "sync"), "all 4 ranks are at step 29, in the phase sync"),
        (
            {0: "sync", 1: "other", 2: "sync", 3: "sync"},
            "all 4 ranks are at step 29; rank 1 is not in the phase sync, in which the others wait, but in other",
        ),
        (
            {0: "sync", 1: "other", 2: "sync", 3: "data"},
            "all 4 ranks are at step 29; ranks 1 and 3 are not in the phase sync, in which the others wait",
        ),
        (
            {0: "backward", 1: "backward", 2: "data", 3: "backward"},
            "all 4 ranks are at step 29; rank 2 is not in the phase backward, in which the others are, but in data",
        ),
        ({0: "forward", 1: "forward", 2: "data", 3: "data"}, "all 4 ranks are at step 29"),
    ],
)
def test_ranks_at_the_same_step_are_distinguished_by_their_phases(phases: dict[int, str], reported: str) -> None:
    run = trained(4)
    for second in range(3):
        for rank, phase in phases.items():
            run.beat(rank, **{phase: float(second)})
        run.wait(1)
    run.wait(100)
    assert run.trouble[-1].summary.endswith(f": {reported}")


def test_of_two_ranks_at_the_same_step_the_one_that_does_not_wait_is_named() -> None:
    run = trained(2)
    for second in range(3):
        run.beat(0, sync=float(second))
        run.beat(1, other=float(second))
        run.wait(1)
    run.wait(100)
    assert "rank 1 is not in the phase sync, in which the other waits, but in other" in run.trouble[-1].summary


def test_time_in_which_the_daemon_saw_nothing_is_no_silence() -> None:
    run = trained()
    run.now += 36_000
    run.wait(10)
    assert not run.trouble


def test_a_long_interval_of_the_sampler_is_seen() -> None:
    run = Running()
    for step in range(0, 600, 60):
        run.push(step)
        run.wait(60, tick=60)
    run.wait(900, tick=60)
    assert run.trouble[-1].severity == "critical"


def test_a_rank_that_others_leave_behind_is_silent() -> None:
    run = trained(8)
    for step in range(30, 80):
        run.push(step, *(rank for rank in range(8) if rank != 5))
        run.wait(1)
    (alarm,) = run.trouble
    assert (alarm.alert, alarm.severity, alarm.labels) == ("RankSilent", "warning", (("rank", "5"), ("run", "net")))
    assert "its last step is 29, theirs" in alarm.summary
    run.push(30, 5)
    run.wait(1)
    assert run.findings_of("RankSilent", over=True)


def test_of_several_silent_ranks_one_is_named_and_the_others_are_counted() -> None:
    run = trained(8)
    for step in range(30, 80):
        run.push(step, 0, 1, 2, 3)
        run.wait(1)
    (alarm,) = run.trouble
    assert "and so have 3 more ranks" in alarm.summary


def test_a_rank_without_any_evidence_hides_no_silent_one() -> None:
    run = Running(3)
    run.push(0, 2)
    for step in range(80):
        run.push(step, *((0, 1) if step < 30 else (0,)))
        run.wait(1)
    (alarm,) = run.trouble
    assert (alarm.alert, dict(alarm.labels)["rank"]) == ("RankSilent", "1")


def test_a_rank_that_pushes_seldom_is_not_silent() -> None:
    run = Running(2)
    for step in range(1000):
        run.push(step, *((0, 1) if step % 100 == 0 else (0,)))
        run.wait(1)
    assert not run.trouble


def test_a_rank_that_has_finished_before_others_is_not_silent() -> None:
    run = trained(2)
    run.state(1, "finished")
    for step in range(30, 130):
        run.push(step, 0)
        run.wait(1)
    assert not run.trouble


def stalls(run: Running, *pushed: float | None, attempt: int = 0) -> list[bool]:
    """Return, for each rank, whether it is stalled, given the time of its last push."""
    stall = run.stalls().get((ID, attempt))
    return [stall is not None and stall.has(rank, last) for rank, last in enumerate(pushed)]


def test_the_stalled_ranks_can_be_asked_for_by_the_last_push() -> None:
    run = trained(2)
    last = run.now - 1
    run.wait(25)
    assert stalls(run, last, last) == [False, False]
    run.wait(5)
    assert stalls(run, last, last) == [True, True], "from the warning on"
    assert stalls(run, last, run.now) == [True, False], "a push that is not seen here yet"
    assert stalls(run, last, last, attempt=1) == [False, False]
    assert stalls(run, *[None] * 7, last)[7] is False, "there is no such rank"
    run.push(30, 0)
    assert stalls(run, run.now, last) == [False, False], "at once, whenever the detector looks next"
    run.wait(1)
    assert stalls(run, run.now - 1, last) == [False, True], "it is left behind now"
    run.push(30, 1)
    assert stalls(run, run.now - 1, run.now) == [False, False]
    run.wait(1)
    assert run.stalls() == {}, "the end of a stall is reported"


def test_ranks_that_wait_for_a_dead_one_are_not_stalled() -> None:
    run = trained(2)
    last = run.now - 1
    run.report("rank_ended", 1, state="failed", cause="SIGKILL")
    run.state(1, "failed")
    run.wait(600)
    assert stalls(run, last, last) == [False, False]


def test_all_ranks_that_others_leave_behind_are_stalled_until_each_pushes() -> None:
    run = trained(4)
    last = run.now - 1
    for step in range(30, 80):
        run.push(step, 2, 3)
        run.wait(1)
    assert [alarm.alert for alarm in run.trouble] == ["RankSilent"]
    assert stalls(run, last, last, run.now - 1, run.now - 1) == [True, True, False, False]
    run.push(30, 0)
    assert stalls(run, run.now, last) == [False, True]
    run.push(30, 1)
    assert stalls(run, run.now, run.now) == [False, False]


def test_after_a_restart_of_the_daemon_a_stall_is_found_anew_in_time() -> None:
    """A restored alert fires for five minutes, unless it is found again."""
    run = Running()
    counts = [0] * 18
    counts[8] = 500
    run.watch = RunWatch()
    run.wait(1)
    samples = run.samples(0, 500)
    samples += [
        Sample(f.PUSHES, ("net", "0"), 500),
        Sample(f.STEP_DURATION, ("net", "0"), Distribution(tuple(counts), 250.0)),
    ]
    run.speak(0, samples)
    run.wait(299)
    assert run.trouble[-1].severity == "critical"


@pytest.mark.parametrize("ranks", [1, 8])
def test_a_quiet_run_gives_no_finding(ranks: int) -> None:
    run = trained(ranks, steps=3000)
    assert not run.trouble
