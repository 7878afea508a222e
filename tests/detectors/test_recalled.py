"""Detectors after a restart of the daemon: they go on where those before them were."""

from __future__ import annotations

from math import nan
from typing import TYPE_CHECKING

import pytest
from detectors.losses import falling
from detectors.running import BEGAN, ID, Running
from detectors.test_rank_watch import block, findings_of, ingested, opened

from trackside.wire import Identity
from trackside_daemon.detectors.base import Column, Past
from trackside_daemon.detectors.rank_watch import RankWatch
from trackside_daemon.detectors.run_watch import RunWatch
from trackside_daemon.model.records import Alert

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trackside_daemon.model.stall import Stall

LABELS = {"key": "loss", "rank": "0", "run": "name-id"}


def past(losses: Sequence[float], *, run: str = "id", seconds: float = 1.0) -> Past:
    """Return the past of a rank that has pushed these losses."""
    steps = [*range(len(losses))]
    times = [1.7e9 + seconds * step for step in steps]
    pushes = [*zip(times, steps, strict=True)]
    return Past(Identity(run, f"name-{run}"), [{"loss": Column(steps, times, losses)}], pushes)


def test_a_spike_right_after_a_restart_is_found() -> None:
    watch, losses = RankWatch(), falling(512)
    watch.restore_rank(past(losses), [])
    assert findings_of(watch, opened()) == []
    (found,) = findings_of(watch, ingested(block(512, {"loss": [3 * losses[-1]]})))
    assert (found.alert, dict(found.labels)) == ("LossHardBatch", LABELS)
    anew = RankWatch()
    assert findings_of(anew, opened(), ingested(block(512, {"loss": [3 * losses[-1]]}))) == []


def test_an_earlier_finding_is_not_reported_anew() -> None:
    watch, losses = RankWatch(), falling(512)
    losses[400:404] = [3 * loss for loss in losses[400:404]]
    watch.restore_rank(past([*losses[:500], *[nan] * 12]), [])
    assert findings_of(watch, opened()) == []


def test_a_finding_that_still_fires_is_reported_as_the_same_and_ends_when_it_is_over() -> None:
    kept = Alert("NonFinite", "critical", 1.7e9 + 500, "id", LABELS, "NaN at step 500")
    gone = Alert("LossSpike", "warning", 1.7e9 + 100, "id", LABELS, "a spike")
    watch = RankWatch()
    watch.restore_rank(past([*falling(500), *[nan] * 12]), [gone, kept])
    (again,) = findings_of(watch, opened())
    assert (again.alert, again.time, again.summary, again.over) == ("NonFinite", kept.started, kept.summary, False)
    assert dict(again.labels) == LABELS
    (over,) = findings_of(watch, ingested(block(512, {"loss": [2.0] * 10})))
    assert (over.alert, over.over) == ("NonFinite", True)


def test_another_attempt_begins_anew() -> None:
    watch = RankWatch()
    watch.restore_rank(past(falling(512)), [])
    assert findings_of(watch, opened(attempt=1)) == []
    assert findings_of(watch, ingested(block(0, {"loss": [90.0] * 3}))) == []


def stalled(severity: str = "critical", alert: str = "TrainingStalled", **labels: str) -> Alert:
    since = {"since": BEGAN - 400}
    return Alert(alert, severity, BEGAN - 360, ID, {"run": "net", **labels}, "it stands", evidence=since)


def restarted(*kept: Alert, ranks: int = 1) -> Running:
    """Return a run that has connected again and pushed its last step."""
    watch = RunWatch()
    for alert in kept:
        watch.restore(alert)
    run = Running(ranks, watch=watch)
    for rank in range(ranks):
        run.push(30, rank)
        run.wait(1)
    return run


@pytest.mark.parametrize("ranks", [1, 8])
def test_a_stall_continues_though_nothing_is_pushed(ranks: int) -> None:
    run = restarted(stalled(), ranks=ranks)
    run.wait(3000)
    (alarm,) = run.trouble
    assert (alarm.alert, alarm.severity, alarm.over) == ("TrainingStalled", "critical", False)
    run.push(31, 0)
    run.wait(1)
    assert [one.over for one in run.trouble] == [False, True]


def test_a_stall_that_was_a_warning_gets_worse_by_its_own_time() -> None:
    run = restarted(stalled("warning"))
    run.wait(1200)
    assert [one.severity for one in run.trouble] == ["warning"]
    run.wait(250)
    assert [one.severity for one in run.trouble] == ["warning", "critical"], "1800 s, of which 400 were before"


class Stalls:
    """The stalls that a watch has reported."""

    def __init__(self, watch: RunWatch) -> None:
        self._watch = watch
        self._stalls: dict[tuple[str, int], Stall] = {}

    def of(self, run: str, attempt: int = 0) -> Stall | None:
        """Return the last report about an attempt."""
        for stall in self._watch.changed_stalls():
            self._stalls[stall.run, stall.attempt] = stall
        return self._stalls.get((run, attempt))


def stands(stalls: Stalls, pushed: float | None, attempt: int = 0) -> list[bool]:
    """Return, for each of two ranks whose last push was at *pushed*, whether it is stalled."""
    stall = stalls.of(ID, attempt)
    return [stall is not None and stall.has(rank, pushed) for rank in range(2)]


def test_a_stall_of_before_is_known_before_its_ranks_speak() -> None:
    watch = RunWatch()
    stalls = Stalls(watch)
    watch.restore(stalled())
    assert stands(stalls, BEGAN - 400) == [True, True]
    assert stalls.of("another") is None
    run = Running(2, watch=watch)
    assert stands(stalls, BEGAN - 400)[1], "it has not reported yet when it pushed last"
    run.push(30, 0, 1)
    assert stands(stalls, run.now)[1]
    run.wait(60)
    assert stands(stalls, run.now - 60)[1]
    run.push(31, 0)
    run.wait(1)
    assert not stands(stalls, run.now - 61)[1]


def test_a_silent_rank_of_before_is_known_before_it_speaks() -> None:
    watch = RunWatch()
    stalls = Stalls(watch)
    watch.restore(stalled("warning", "RankSilent", rank="1"))
    assert stands(stalls, BEGAN - 400) == [False, True]
    run = Running(2, watch=watch)
    assert stands(stalls, BEGAN - 400) == [False, True]
    run.push(30, 0, 1)
    assert stands(stalls, run.now) == [False, True]
    run.wait(2)
    assert stands(stalls, run.now - 2) == [False, True]
    run.push(31, 1)
    assert stands(stalls, run.now) == [False, False]


@pytest.mark.parametrize("alert", ["TrainingStalled", "RankSilent"])
def test_a_push_before_the_first_evaluation_ends_it(alert: str) -> None:
    watch = RunWatch()
    stalls = Stalls(watch)
    watch.restore(stalled("warning", alert, rank="0"))
    run = Running(watch=watch)
    run.push(30)
    run.now += 0.1
    run.push(31)
    assert stands(stalls, run.now) == [False, False]
    run.wait(2)
    assert [one.over for one in run.trouble] == [False, True]


def test_another_attempt_of_the_run_is_not_stalled() -> None:
    watch = RunWatch()
    stalls = Stalls(watch)
    watch.restore(stalled())
    assert stands(stalls, None, 1) == [False, False]
    run = Running(attempt=1, watch=watch)
    assert stands(stalls, None, 1) == [False, False]
    assert [one.alert for one in run.findings_of("TrainingStalled", over=True)] == ["TrainingStalled"]
    assert dict(run.trouble[-1].labels) == {"run": "net"}


def test_other_ranks_that_were_silent_before_are_so_again() -> None:
    watch = RunWatch()
    for rank in range(4):
        about = Identity(ID, "net", 0, rank, rank, 4, 4)
        watch.restore_rank(past([2.0] * 20, run=ID)._replace(identity=about), [])
    watch.restore(stalled("warning", "RankSilent", rank="2"))
    run = Running(4, watch=watch)
    run.push(19, 1, 2, 3)
    for step in range(20, 60):
        run.push(step, 0)
        run.wait(1)
    found = Stalls(watch).of(ID)
    assert found is not None
    assert [found.has(rank, BEGAN + 1) for rank in range(4)] == [False, True, True, True]
    assert len(run.trouble) == 1, "reported of one"


def test_a_run_that_ends_is_stalled_no_more() -> None:
    run = restarted(stalled())
    run.marks("stopped")
    assert run.findings_of("TrainingStalled", over=True)


def test_a_silent_rank_is_silent_until_it_pushes() -> None:
    run = restarted(stalled("warning", "RankSilent", rank="1"), ranks=2)
    for second in range(400):
        run.push(31 + second, 0)
        run.wait(1)
    (alarm,) = run.trouble
    assert (alarm.alert, dict(alarm.labels)["rank"], alarm.over) == ("RankSilent", "1", False)
    run.push(500, 1)
    run.wait(1)
    assert run.findings_of("RankSilent", over=True)


@pytest.mark.parametrize("alert", ["StragglerRank", "DataLoaderBottleneck", "CheckpointOverdue"])
def test_others_go_on_and_end_with_the_run(alert: str) -> None:
    run = restarted(stalled("warning", alert))
    run.wait(30)
    assert [(one.alert, one.over) for one in run.trouble] == [(alert, False)]
    run.marks("finished")
    assert run.findings_of(alert, over=True)


def test_a_death_continues_until_the_run_is_restarted() -> None:
    dead = Alert(
        "TrainingProcessDied", "critical", BEGAN - 60, ID, {"rank": "3", "run": "net"}, evidence={"cause": "SIGBUS"}
    )
    run = restarted(dead)
    (alarm,) = run.trouble
    assert (alarm.time, alarm.summary) == (dead.started, "rank 3 of run net was killed by SIGBUS")
    Running(attempt=1, watch=run.watch)
    run.wait(1)
    again = restarted(dead)
    again.attempt = 1
    again.report("run_restarted")
    assert again.findings_of("TrainingProcessDied", over=True)


def test_the_pace_of_a_run_is_known_after_a_restart() -> None:
    watch = RunWatch()
    watch.restore_rank(past([2.0] * 200, run=ID, seconds=100.0), [])
    run = Running(watch=watch)
    run.push(200)
    run.wait(298)
    assert not run.trouble, "warned after 0.6 of 5 times 100 s"
    run.wait(10)
    assert [one.severity for one in run.trouble] == ["warning"]
