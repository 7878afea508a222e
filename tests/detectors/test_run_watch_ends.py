"""Findings about the beginning, end, restart and death of a run: each once, with its cause."""

from __future__ import annotations

from dataclasses import replace

import pytest
from detectors.running import BEGAN, ID, Running
from session_records import batch_ingested, session_opened

from trackside.packing import pack
from trackside.wire import Block, Clock, Hello, Identity, Totals
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.records import Event
from trackside_daemon.model.session import RankRef, SessionRef


def test_a_run_that_begins_is_reported_once() -> None:
    run = Running()
    run.wait(10)
    (alarm,) = run.alarms
    assert (alarm.alert, alarm.severity, alarm.once, alarm.labels) == ("RunStarted", "info", True, (("run", "net"),))
    assert alarm.run == ID
    assert alarm.summary == "run net has begun"


def test_a_run_that_finishes_is_reported_once_with_how_long_it_took_and_its_losses() -> None:
    run = Running()
    run.push(3)
    run.losses(1, 3.0, 1.5, float("nan"))
    run.losses(4, 2.25)
    run.wait(200)
    run.marks("finished")
    run.marks("finished")
    (alarm,) = run.findings_of("RunFinished")
    assert alarm.summary == "run net has finished after 3 min 21 s and 3 steps: last loss 2.25, best 1.5 at step 2"
    assert alarm.once
    assert not run.trouble


def test_the_end_of_a_run_names_its_report() -> None:
    run = Running(report="report: /srv/{}.html".format)
    run.push(3)
    run.marks("finished")
    assert run.findings_of("RunFinished")[0].summary.endswith(f": report: /srv/{ID}.html")


def test_the_end_of_a_short_run_that_waited_for_data_mentions_the_wait() -> None:
    run = Running()
    run.push(1, wait=0.0)
    run.wait(15)
    run.push(30, wait=9.0)
    run.losses(1, 3.0)
    run.marks("finished")
    (alarm,) = run.findings_of("RunFinished")
    assert alarm.summary.endswith("best 3 at step 1; 56.2 % of the time was spent waiting for data")


def test_the_end_of_a_run_speaks_of_all_its_attempts_and_of_one_loss() -> None:
    run = Running()
    run.push(400)
    run.losses(1, 3.0, 1.5)
    run.wait(100)
    run.marks("failed")
    run.accept(Batch(run.source, complete=True, subject=RankRef(ID, run.attempt)))
    again = Running(attempt=1, watch=run.watch)
    again.now = run.now
    again.push(200)
    again.losses(3, 2.5)
    again.losses(3, 9.0, key="loss_logged")
    again.wait(100)
    again.marks("finished")
    (alarm,) = again.findings_of("RunFinished")
    assert alarm.summary == "run net has finished after 3 min 21 s and 600 steps: last loss 2.5, best 1.5 at step 2"


def test_a_run_that_is_stopped_by_its_user_is_no_trouble() -> None:
    run = Running()
    run.push(3)
    run.report("rank_ended", 0, state="stopped", cause="SIGTERM")
    run.marks("stopped")
    run.wait(3600)
    assert run.findings_of("RunFinished")[0].summary.startswith("run net was stopped after")
    assert not run.trouble


def test_a_rank_that_is_killed_is_reported_at_once_with_its_signal() -> None:
    run = Running(2)
    (alarm,) = run.report("rank_ended", 1, state="failed", cause="SIGKILL", signal="SIGKILL")
    assert (alarm.alert, alarm.severity, alarm.labels) == (
        "TrainingProcessDied",
        "critical",
        (("rank", "1"), ("run", "net")),
    )
    assert alarm.summary == "rank 1 of run net was killed by SIGKILL"
    run.marks("failed")
    run.wait(5)
    assert len(run.trouble) == 1, "its run's end is no news"
    run.wait(900)
    assert run.findings_of("TrainingProcessDied", over=True)[0].labels == alarm.labels


def test_a_death_has_the_last_step() -> None:
    run = Running(2)
    run.push(1234, 0, 1)
    (alarm,) = run.report("rank_ended", 1, state="failed", cause="SIGSEGV")
    assert alarm.summary == "rank 1 of run net, at step 1,234 or later, was killed by SIGSEGV"


def test_rows_that_are_stored_after_a_death_raise_its_step() -> None:
    run = Running()
    run.push(289)
    run.report("rank_ended", 0, state="failed", cause="SIGKILL")
    session = SessionRef(bytes(16), ID, "net", 0, late=True)

    def store(*steps: int, rank: int = 0, attempt: int = 0) -> list[str]:
        block = Block(["loss"], pack("q", steps), pack("q", steps), pack("d", [1.0] * len(steps)))
        of = session._replace(rank=rank, attempt=attempt)
        return [one.summary for one in run.accept(Batch("ingest", records=[batch_ingested(of, 1, [block])]))]

    assert store(289) == store(1, rank=1) == store(300, attempt=1) == []
    assert store(290, 297) == ["rank 0 of run net, at step 297 or later, was killed by SIGKILL"]
    assert store(291) == []


def test_a_death_is_over_when_a_run_of_the_same_name_begins() -> None:
    run = Running()
    run.report("rank_ended", 0, state="failed", cause="SIGSEGV")
    run.wait(60)
    run.accept(Batch("training", records=[Event("other", 0, run.now, "run_started")]))
    assert not run.findings_of("TrainingProcessDied", over=True), "its name is other"
    late = Event("net-2", 0, run.now - 3600, "run_started")
    named = session_opened(bytes(16), Hello(Identity("net-2", "net"), Clock(0, 0), 0, Totals()), "net", 0, run.now)
    run.accept(Batch("ingest", records=[named, late]))
    assert not run.findings_of("TrainingProcessDied", over=True), "it began before"
    run.accept(Batch("ingest", records=[replace(late, time=run.now)]))
    (over,) = run.findings_of("TrainingProcessDied", over=True)
    assert (over.labels, over.summary) == ((("rank", "0"), ("run", "net")), "run net was started again")
    run.accept(
        Batch(
            "training",
            records=[Event("net-2", 0, run.now, "rank_ended", 0, fields={"state": "failed", "cause": "SIGSEGV"})],
        )
    )
    assert len(run.findings_of("TrainingProcessDied")) == 2


@pytest.mark.parametrize(
    ("state", "cause", "alert", "words"),
    [
        ("failed", "OOM killed", "OomKilled", "rank 0 of run net was killed by the kernel because memory ran out"),
        ("failed", "exit status 3", "TrainingProcessDied", "rank 0 of run net died: exit status 3"),
        ("failed", "ValueError", "TrainingProcessDied", "rank 0 of run net died: ValueError"),
        ("lost", "unknown", "TrainingProcessDied", "how it ended is unknown"),
    ],
)
def test_each_cause_is_reported(state: str, cause: str, alert: str, words: str) -> None:
    run = Running()
    run.report("rank_ended", 0, state=state, cause=cause)
    run.wait(3)
    (alarm,) = run.trouble
    assert alarm.alert == alert
    assert words in alarm.summary
    assert alarm.description


@pytest.mark.parametrize("state", ["finished", "stopped"])
def test_a_good_end_is_no_death(state: str) -> None:
    run = Running()
    run.report("rank_ended", 0, state=state, cause="")
    run.wait(60)
    assert not run.trouble


def test_an_exit_that_changes_a_good_end_is_a_death() -> None:
    run = Running()
    run.report("rank_ended", 0, state="finished", cause="")
    run.report("rank_ended", 0, state="failed", cause="exit status 3", status=3)
    run.report("rank_ended", 0, state="failed", cause="exit status 3", status=3)
    assert len(run.trouble) == 1


@pytest.mark.parametrize("seen_first", [True, False])
def test_a_data_loader_worker_that_died_is_named_as_the_cause(seen_first: bool) -> None:
    run = Running(2)
    cause = "killed by SIGBUS: /dev/shm is full (64 of 64 MiB)"
    if seen_first:
        run.report("dataloader_died", 1, pid=4711, signal="SIGBUS", cause=cause)
    run.report("rank_ended", 1, state="failed", cause="RuntimeError")
    if not seen_first:
        run.report("dataloader_died", 1, pid=4711, signal="SIGBUS", cause=cause)
    assert run.trouble[0].summary == "rank 1 of run net died: RuntimeError", "at once: the daemon may end now"
    run.wait(3)
    *_, alarm = run.trouble
    assert f"data loader worker 4711 of rank 1 was {cause}." in alarm.description
    assert {(one.alert, one.time, one.labels) for one in run.trouble} == {(alarm.alert, alarm.time, alarm.labels)}


def test_a_worker_of_another_rank_or_of_long_ago_is_no_cause() -> None:
    run = Running(2)
    run.report("dataloader_died", 0, pid=4711, cause="killed by SIGBUS")
    run.report("dataloader_died", 1, time=run.now - 300, pid=4712, cause="killed by SIGBUS")
    run.report("rank_ended", 1, state="failed", cause="RuntimeError")
    run.wait(3)
    assert "worker" not in run.trouble[0].description


def test_a_restart_is_reported_and_ends_the_findings_of_the_attempt_before() -> None:
    run = Running()
    run.push(1)
    run.report("rank_ended", 0, state="failed", cause="SIGSEGV")
    run.marks("failed")
    run.accept(Batch(run.source, complete=True, subject=RankRef(ID, run.attempt)))
    again = Running(attempt=1, watch=run.watch)
    assert again.findings_of("RunRestarted")[0].summary == "run net was restarted: attempt 1 begins"
    assert again.findings_of("TrainingProcessDied", over=True)


def test_a_rank_that_was_thought_lost_and_is_back_is_dead_no_more() -> None:
    run = Running(2)
    run.push(1, 0, 1)
    run.report("rank_ended", 1, state="lost", cause="unknown")
    run.state(1, "lost")
    run.state(1, "running")
    assert run.findings_of("TrainingProcessDied", over=True)[0].labels == (("rank", "1"), ("run", "net"))


def test_a_run_that_died_without_a_daemon_is_reported() -> None:
    run = Running()
    run.marks("lost")
    (alarm,) = run.trouble
    assert alarm.summary.startswith("run net is lost")


def test_what_ended_long_ago_is_no_news() -> None:
    run = Running()
    run.report("rank_ended", 0, time=BEGAN - 1000, state="failed", cause="ValueError")
    run.wait(10)
    assert not run.trouble


def test_what_the_training_raises_is_passed_on() -> None:
    run = Running()
    (alarm,) = run.raises("Reward hacking", "The score rose by 3 in one step.", "critical")
    assert (alarm.alert, alarm.severity, alarm.summary) == ("UserAlert", "critical", "Reward hacking")
    assert alarm.description == "The score rose by 3 in one step.\nRaised by rank 0 of run net at step 7."
    assert (alarm.labels, alarm.once, alarm.run) == ((("rank", "0"), ("run", "net")), True, ID)


def test_of_a_flood_of_them_one_a_minute_is_passed_on_and_the_others_are_counted() -> None:
    run = Running()
    for number in range(600):
        run.raises(f"Trouble {number}", "x" * 10_000)
        run.wait(1)
    alarms = run.findings_of("UserAlert")
    assert len(alarms) == 10
    assert "59 more alerts arrived within the minute before" in alarms[1].description
    assert len(alarms[1].description) < 5000


def test_a_severity_that_is_none_is_a_warning() -> None:
    assert Running().raises("Trouble", severity="terrible")[0].severity == "warning"


def test_a_death_with_a_cause_that_is_learnt_later_is_reported_by_its_right_name_alone() -> None:
    run = Running(2)
    run.report("rank_ended", 1, state="lost", cause="")
    run.report("rank_ended", 1, state="failed", cause="OOM killed")
    assert [(one.alert, one.over) for one in run.trouble] == [
        ("TrainingProcessDied", False),
        ("TrainingProcessDied", True),
        ("OomKilled", False),
    ]
