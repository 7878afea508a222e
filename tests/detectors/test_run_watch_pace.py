"""Findings about lost time and risks: a slow rank, waits for data, no checkpoint, a blind monitor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from detectors.running import ID, Running

from trackside_daemon.model.families import daemon
from trackside_daemon.model.metric import Batch, Sample
from trackside_daemon.model.session import RankRef

if TYPE_CHECKING:
    from collections.abc import Callable


def train(run: Running, seconds: int, spent: Callable[[int, int], dict[str, float]], ranks: int) -> None:
    """Push ten steps a second; *spent* returns the seconds by phase of a rank after so many steps."""
    for second in range(seconds):
        for rank in range(ranks):
            steps = 10 * (second + 1)
            run.push(steps, rank, phases=spent(rank, steps))
        run.wait(1)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_rank_with_more_own_time_than_the_others_is_a_straggler(ranks: int) -> None:
    run = Running(ranks)
    train(
        run,
        400,
        lambda rank, steps: {"forward": steps * (0.04 if rank == 1 else 0.03), "backward": steps * 0.05},
        ranks,
    )
    (alarm,) = run.trouble
    assert (alarm.alert, alarm.severity, alarm.labels) == ("StragglerRank", "warning", (("rank", "1"), ("run", "net")))
    assert (
        "needs 90 ms per step, without waiting, 1.33 times the 67.5 ms of the median rank; rank 1 takes 10 ms longer in forward"
        in alarm.summary
    )


def test_a_straggler_is_compared_with_its_own_past() -> None:
    run = Running(4)
    slow = 3000  # the steps after which one rank slows down
    train(run, 900, lambda rank, steps: {"forward": steps * 0.03 + max(0, steps - slow) * 0.015 * (rank == 1)}, 4)
    (alarm,) = run.trouble
    assert "Before, it took 30 ms: now 1.50 times its own past." in alarm.description
    assert alarm.evidence["past"] == pytest.approx(0.03)
    always = Running(4)
    train(always, 400, lambda rank, steps: {"forward": steps * (0.045 if rank == 1 else 0.03)}, 4)
    (alarm,) = always.trouble
    assert "It was not faster before, as far as is known." in alarm.description
    assert "past" not in alarm.evidence


def test_how_far_ranks_are_behind_is_on_the_page_until_the_run_ends() -> None:
    run = Running(4)
    train(run, 40, lambda rank, steps: {"forward": steps * (0.045 if rank == 1 else 0.03)}, 4)
    (batch,) = run.watch.changed_batches()
    ratios = {sample.labels: sample.value for sample in batch.samples}
    assert ratios == {("net", str(rank)): pytest.approx(1.5 if rank == 1 else 1.0) for rank in range(4)}
    assert run.watch.changed_batches() == [], "once a window"
    run.marks("finished")
    (batch,) = run.watch.changed_batches()
    assert (batch.samples, batch.complete) == ([], True)


def test_it_is_over_when_it_is_as_fast_as_the_others() -> None:
    run = Running(4)
    train(run, 400, lambda rank, steps: {"forward": steps * (0.04 if rank == 1 else 0.03)}, 4)
    train(run, 0, lambda *_: {}, 4)
    for second in range(400, 800):
        for rank in range(4):
            steps = 10 * (second + 1)
            run.push(steps, rank, phases={"forward": 160 * (rank == 1) + steps * 0.03})
        run.wait(1)
    assert run.findings_of("StragglerRank", over=True)


@pytest.mark.parametrize("seconds", [200, 800])
def test_a_rank_that_slows_down_and_recovers_is_a_straggler_within_a_minute_each(seconds: int) -> None:
    run = Running(4)
    spent = [0.0] * 4
    slow = range(300, 300 + seconds)
    for second in range(slow.stop + 200):
        for rank in range(4):
            spent[rank] += 0.3 * (1.33 if rank == 3 and second in slow else 1)
            run.push(3 * second, rank, phases={"forward": spent[rank]})
        run.wait(1)
    (begins,) = run.findings_of("StragglerRank")
    (over,) = run.findings_of("StragglerRank", over=True)
    assert len(run.trouble) == 2
    began = run.now - slow.stop - 200
    assert 300 < begins.time - began <= 360
    assert slow.stop - 2 <= over.time - began <= slow.stop + 15, "the time of its recovery"
    assert over.evidence == {"recovered": over.time}


def test_time_that_is_spent_waiting_for_a_slow_rank_makes_no_straggler() -> None:
    """Rank 1 is slow in forward(), and so all others are in backward(), where they wait for it."""
    run = Running(4)
    train(
        run,
        400,
        lambda rank, steps: {
            "forward": steps * (0.05 if rank == 1 else 0.03),
            "backward": steps * (0.03 if rank == 1 else 0.05),
        },
        4,
    )
    assert [alarm.labels for alarm in run.trouble] == [(("rank", "1"), ("run", "net"))]


def test_backward_counts_where_the_waiting_is_measured_apart() -> None:
    run = Running(4)
    train(run, 400, lambda rank, steps: {"backward": steps * (0.06 if rank == 2 else 0.05), "sync": steps * 0.01}, 4)
    assert [alarm.labels for alarm in run.trouble] == [(("rank", "2"), ("run", "net"))]


def test_time_outside_of_any_phase_is_own_time_where_the_waiting_is_measured_apart() -> None:
    run = Running(4)
    usual = {"forward": 0.03, "backward": 0.05}
    slow, waits = usual | {"other": 0.07, "sync": 0.0}, usual | {"other": 0.01, "sync": 0.06}
    train(
        run,
        400,
        lambda rank, steps: {name: steps * each for name, each in (slow if rank == 2 else waits).items()},
        4,
    )
    (alarm,) = run.trouble
    assert alarm.labels == (("rank", "2"), ("run", "net"))
    assert "rank 2 takes 60 ms longer outside of any phase" in alarm.summary


def test_a_rank_that_is_slow_now_and_then_is_no_straggler() -> None:
    run = Running(4)
    spent = [0.0] * 4
    for second in range(600):
        for rank in range(4):
            spent[rank] += 0.3 * (1.5 if (second // 10 + rank) % 4 == 0 else 1)
            run.push(10 * second, rank, phases={"forward": spent[rank]})
        run.wait(1)
    assert not run.trouble


def test_without_phases_no_rank_is_a_straggler() -> None:
    run = Running(4)
    train(run, 400, lambda *_: {}, 4)
    assert not run.trouble


def test_short_epochs_that_wait_for_their_first_batches_are_reported_with_their_remedy() -> None:
    run = Running(2)
    for second in range(60):
        for rank in range(2):
            run.push(20 * second, rank, wait=0.05 * second, first_wait=0.4 * second)
        run.wait(1)
    (alarm,) = run.trouble
    assert alarm.summary.startswith("run net spends 45.0 % of its time waiting for data")
    assert "persistent_workers=True" in alarm.description


@pytest.mark.parametrize("how", ["data()", "phase"])
def test_a_training_that_waits_for_its_data_is_reported(how: str) -> None:
    run = Running(2)
    for second in range(60):
        for rank in range(2):
            wait = 0.4 * second
            observed = {"wait": wait} if how == "data()" else {"phases": {"data": wait, "forward": 0.6 * second}}
            run.push(20 * second, rank, **observed)
        run.wait(1)
    (alarm,) = run.trouble
    assert (alarm.alert, alarm.severity, alarm.labels) == ("DataLoaderBottleneck", "warning", (("run", "net"),))
    assert alarm.summary.startswith("run net spends 40.0 % of its time waiting for data: 20 ms of the 50 ms of a step")
    assert alarm.description.startswith("Try more data loader workers")
    for second in range(60, 120):
        for rank in range(2):
            observed = {"wait": 24.0} if how == "data()" else {"phases": {"data": 24.0, "forward": 0.6 * second}}
            run.push(20 * second, rank, **observed)
        run.wait(1)
    assert run.findings_of("DataLoaderBottleneck", over=True)


def test_slow_steps_have_windows_of_a_minute() -> None:
    run = Running()
    for step in range(40):
        run.push(step, wait=5.0 * step)
        run.wait(10)
    assert [alarm.alert for alarm in run.trouble] == ["DataLoaderBottleneck"]


def test_little_waiting_and_one_long_wait_are_no_bottleneck() -> None:
    run = Running()
    for second in range(300):
        run.push(20 * second, wait=0.2 * second + (8.0 if second > 105 else 0.0))
        run.wait(1)
    assert not run.trouble


def test_a_checkpoint_that_does_not_come_is_overdue() -> None:
    run = Running(2)
    for second in range(4000):
        run.push(second, 0, 1)
        if second % 600 == 0 and second < 2000:
            run.report("checkpoint", 0)
            run.report("checkpoint", 1)
        run.wait(1)
    (alarm,) = run.trouble
    assert (alarm.alert, alarm.severity, alarm.labels) == ("CheckpointOverdue", "warning", (("run", "net"),))
    assert alarm.summary == "run net has saved no checkpoint for 20 min 1 s; before, it saved one every 10 min"
    run.report("checkpoint", 0)
    run.wait(1)
    assert run.findings_of("CheckpointOverdue", over=True)


def test_a_damaged_checkpoint_does_not_count() -> None:
    run = Running()
    for second in range(2500):
        run.push(second)
        if second % 600 == 0 and second < 2000:
            run.audit(second, "complete" if second < 1800 else "damaged", reported=True)
        run.wait(1)
    (alarm,) = run.trouble
    assert alarm.summary == (
        "run net has saved no good checkpoint for 20 min 1 s, at step 1,200; the one of step 1,800 is damaged; before, "
        "it saved one every 10 min"
    )
    run.audit(2500, "complete", reported=True)
    run.wait(1)
    assert run.findings_of("CheckpointOverdue", over=True)


def test_checkpoints_that_no_event_reports_count_when_they_are_intact() -> None:
    run = Running()
    for second in range(4000):
        run.push(second)
        if second % 600 == 0 and second < 2000:
            run.audit(second, "complete")
        run.wait(1)
    (alarm,) = run.trouble
    assert "has saved no checkpoint for 20 min 1 s, at step 1,800; before, it saved one every 10 min" in alarm.summary


def test_checkpoints_in_time_and_short_delays_are_nothing() -> None:
    run = Running()
    for second in range(4000):
        run.push(second)
        if second % 60 == 0 and not 1000 < second < 1500:
            run.report("checkpoint", 0)
        run.wait(1)
    assert not run.trouble


def test_two_checkpoints_make_no_schedule() -> None:
    run = Running()
    for second in range(4000):
        run.push(second)
        if second in {60, 120}:
            run.report("checkpoint", 0)
        run.wait(1)
    assert not run.trouble


def lose(messages: int) -> Running:
    run = Running(2)
    run.push(1, 0, 1)
    run.report("gap", 0, batches=messages)
    run.wait(1)
    return run


def test_what_clients_lose_makes_the_monitor_blind() -> None:
    run = lose(1200)
    (alarm,) = run.trouble
    assert (alarm.alert, alarm.labels) == ("MonitorBlind", (("run", "net"),))
    assert alarm.summary.startswith("1,200 messages of pushed values are lost: the spool of run net was full")
    for second in range(2, 400):
        run.push(second, 0, 1)
        run.wait(1)
    assert len(run.findings_of("MonitorBlind", over=True)) == 1


def test_a_single_message_is_worth_knowing_only() -> None:
    run = lose(1)
    (alarm,) = run.findings_of("MonitorBlind")
    assert alarm.severity == "info"
    assert alarm.summary.startswith("1 message of pushed values is lost")
    run.report("gap", 1, batches=9)
    run.wait(1)
    assert [one.severity for one in run.findings_of("MonitorBlind")] == ["info", "warning"]


def test_values_that_are_no_numbers_are_no_loss_of_the_monitor() -> None:
    run = Running()
    for second in range(20):
        run.push(second, dropped=5 * second)
        run.wait(1)
    assert not run.findings_of("MonitorBlind")


def test_a_stage_of_the_pipeline_that_fails_makes_it_blind() -> None:
    run = Running()
    for second in range(400):
        run.accept(
            Batch(
                "pipeline",
                [
                    Sample(daemon.PIPELINE_FAILURES, ("history",), 3 * (second > 10)),
                    Sample(daemon.PIPELINE_FAILURES, ("state",), 0),
                ],
            )
        )
        run.wait(1)
    assert [(alarm.alert, alarm.labels, alarm.over) for alarm in run.trouble] == [
        ("MonitorBlind", (("stage", "history"),), False),
        ("MonitorBlind", (("stage", "history"),), True),
    ]
    assert "--storage.path" in run.trouble[0].description


def test_what_is_forgotten_leaves_nothing_behind() -> None:
    run = Running(8)
    run.push(1, *range(8))
    for rank in range(8):
        run.accept(Batch(f"{run.source}:{rank}", complete=True, subject=RankRef(ID, run.attempt, rank)))
    run.accept(Batch(run.source, complete=True, subject=RankRef(ID, run.attempt)))
    assert not run.watch._runs
    assert not run.watch._ranks


def test_a_day_of_healthy_ranks_with_evaluations_and_checkpoints_raises_nothing(
    count: Callable[[int, int], int],
) -> None:
    run = Running(4)
    end, step, evaluated = run.now + 3600 * count(6, 24), 0, 0.0
    while run.now < end:
        step += 1
        for rank in range(4):
            phases = {"forward": 1.5 * step, "backward": 3.0 * step + 0.01 * rank, "data": 0.3 * step}
            run.push(step, rank, phases=phases | ({} if rank else {"eval": evaluated}), wait=0.3 * step)
        run.wait(5)
        if step % 100 == 0:
            for _ in range(300 if step % 1000 == 0 else 120):
                evaluated += 1
                run.beat(0, eval=evaluated)
                run.wait(1)
        if step % 200 == 0:
            run.report("checkpoint", 0)
    assert not run.trouble
