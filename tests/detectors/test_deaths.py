"""Deaths of many runs of one user at once: a few alerts with names, and one for the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from detectors.running import Running

from trackside.wire import CLOSED
from trackside_daemon.alerts.active_alerts import ActiveAlerts
from trackside_daemon.detectors.deaths import MANY, NAMED, SHOWN, Deaths
from trackside_daemon.detectors.run_view import RunClock
from trackside_daemon.model.records import Alert, Event

if TYPE_CHECKING:
    from trackside_daemon.model.finding import Finding

NOW = 1_700_000_000.0


@pytest.fixture
def clock() -> RunClock:
    clock = RunClock()
    clock.advance(NOW)
    return clock


def die(deaths: Deaths, clock: RunClock, run: str, user: str = "mallory", cause: str = "unknown") -> list[Finding]:
    event = Event(run, 0, clock.now, "rank_ended", 0, fields={"state": "lost", "cause": cause})
    return list(deaths.died(event, run, clock, user=user))


def test_many_runs_of_a_user_are_one_alert_that_ends_with_the_last_of_them(clock: RunClock) -> None:
    deaths, alerts = Deaths(), ActiveAlerts()
    alone = [finding for number in range(40) for finding in die(deaths, clock, f"fake-{number}")]
    assert [dict(finding.labels)["run"] for finding in alone] == [f"fake-{number}" for number in range(MANY)]
    alone += die(deaths, clock, "real", user="alice")
    assert alone[-1].run == "real"
    alone += die(deaths, clock, "killed", cause="OOM killed")
    assert alone[-1].alert == "OomKilled"
    (many,) = deaths.evaluate(clock)
    assert (many.alert, many.severity, many.labels, many.run) == (
        "TrainingProcessDied",
        "critical",
        (("user", "mallory"),),
        "",
    )
    names = ", ".join(f"fake-{number}" for number in range(MANY, MANY + NAMED))
    whose = f"more than {MANY} runs of mallory died or are lost within a minute"
    assert many.summary == f"{whose}, also {names} and {40 - MANY - NAMED} more"
    (batch,) = alerts.accept([*alone, many], clock.now)
    fired = [(one.labels.get("run"), one.labels.get("user")) for one in batch.records if isinstance(one, Alert)]
    assert len(fired) == MANY + 3
    assert fired.count((None, "mallory")) == 1
    assert list(deaths.evaluate(clock)) == []

    assert die(deaths, clock, "fake-40") == []
    (grown,) = deaths.evaluate(clock)
    assert grown._replace(summary="", evidence={}) == many._replace(summary="", evidence={})
    for number in range(MANY, 40):
        assert list(deaths.restarted(f"fake-{number}", 1, clock.now)) == []
    (over,) = deaths.restarted("fake-40", 1, clock.now)
    assert (over.labels, over.over) == (many.labels, True)


def test_runs_that_die_one_after_another_have_an_alert_each(clock: RunClock) -> None:
    deaths = Deaths()
    for number in range(20):
        for second in range(61):
            clock.advance(NOW + 61 * number + second)
        assert len(die(deaths, clock, f"run-{number}")) == 1
    assert all(finding.over for finding in deaths.evaluate(clock))


def test_old_deaths_of_many_runs_end(clock: RunClock) -> None:
    deaths = Deaths()
    for number in range(8):
        die(deaths, clock, f"run-{number}")
    assert len(list(deaths.evaluate(clock))) == 1
    for second in range(round(SHOWN) + 2):
        clock.advance(NOW + second)
    ends = list(deaths.evaluate(clock))
    assert [finding.over for finding in ends] == [True] * (MANY + 1)


def test_a_restart_of_the_daemon_does_not_prolong_the_alerts_of_deaths() -> None:
    deaths, clock = Deaths(), RunClock()
    ages = {"new": 10.0, "old": SHOWN - 60}
    for run, age in ages.items():
        labels = {"run": run, "rank": "0"}
        deaths.restore(Alert("TrainingProcessDied", "critical", NOW - age, run, labels, "died", ""), clock)
    clock.advance(NOW)
    assert [(one.run, one.over) for one in deaths.evaluate(clock)] == [("old", False), ("new", False)]
    over: dict[str, float] = {}
    while len(over) < len(ages):
        clock.advance(clock.now + 1)
        over |= {one.run: clock.now - NOW for one in deaths.evaluate(clock) if one.over}
    assert {run: pytest.approx(SHOWN, abs=2) for run in ages} == {run: over[run] + age for run, age in ages.items()}


def test_the_findings_of_a_death_and_of_a_stall_have_their_attempts() -> None:
    """The death of an attempt does not hide the hang of the next one, which has another."""
    run = Running()
    run.report("rank_ended", 0, state="failed", cause="SIGKILL")
    again = Running(attempt=1, watch=run.watch)
    again.push(0)
    again.wait(3600)
    found = [(one.alert, one.attempt) for one in (*run.trouble, *again.trouble) if not one.over]
    assert found == [("TrainingProcessDied", 0), ("TrainingStalled", 1), ("TrainingStalled", 1)]


def test_a_program_that_aborts_itself_was_killed_by_no_other() -> None:
    run = Running()
    (death,) = run.report("rank_ended", 0, state="failed", cause="SIGABRT")
    assert death.summary == "rank 0 of run net aborted itself (SIGABRT)"
    assert death.description.startswith("The program ended itself")
    assert "dmesg" not in death.description


@pytest.mark.parametrize("cause", ["RuntimeError: Connection closed by peer", "SIGABRT"])
@pytest.mark.parametrize("late", [False, True])
def test_a_rank_that_finished_early_is_named_by_the_deaths_of_those_that_waited_for_it(
    cause: str, *, late: bool
) -> None:
    run = Running(3)
    for rank, step in enumerate((9, 9, 7)):
        run.push(step, rank)
    ends = [(2, {"state": "finished"}), (1, {"state": "failed", "cause": cause})]
    finished = run.now
    run.wait(1)
    times = {2: finished, 1: run.now}
    for rank, fields in reversed(ends) if late else ends:
        run.report("rank_ended", rank, times[rank], **fields)
    death = run.findings_of("TrainingProcessDied")[-1]
    assert death.description.startswith("Rank 2 had finished at step 7 before: a rank that then waits for it fails.")
    assert len(run.findings_of("TrainingProcessDied")) == 1 + late


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    ("second", "words"), [("[4] Float", "The ranks' collectives differ"), ("[8] Float", "The program")]
)
def test_an_abort_is_explained_by_the_calls_of_the_ranks_that_it_left(second: str, words: str, *, late: bool) -> None:
    run = Running(3)
    run.push(9, 0, 1, 2)
    ends = [(0, "SIGABRT")]
    ends += [
        (rank, f"RuntimeError: {CLOSED}7 of default_pg: all_reduce with {what}")
        for rank, what in ((1, "[8] Float"), (2, second))
    ]
    for rank, cause in reversed(ends) if late else ends:
        run.report("rank_ended", rank, state="failed", cause=cause)
    death = next(one for one in reversed(run.findings_of("TrainingProcessDied")) if "aborted" in one.summary)
    assert death.description.startswith(words)
    if second == "[4] Float":
        assert "rank 1 called all_reduce with [8] Float" in death.description
        assert "rank 2 called all_reduce with [4] Float" in death.description


def test_a_rank_that_dies_by_itself_is_not_explained_by_one_that_finished() -> None:
    run = Running(2)
    run.push(9, 0, 1)
    run.report("rank_ended", 1, state="finished")
    (killed,) = run.report("rank_ended", 0, state="failed", cause="SIGKILL")
    assert "finished" not in killed.description
