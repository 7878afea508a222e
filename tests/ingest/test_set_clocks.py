"""A clock that is set while a run pushes, the client's, the daemon's or that of the machine of both: the run goes on."""

from __future__ import annotations

from itertools import pairwise
from math import nan
from typing import TYPE_CHECKING, Any

import pytest
from in_process_daemon import InProcessDaemon
from scripted_training import ScriptedTraining
from wire_messages import WALL

from trackside_daemon.alerts.rank_restoring import PastRanks
from trackside_daemon.diagnosis.diagnosis import diagnose
from trackside_daemon.diagnosis.measures import read_measures
from trackside_daemon.diagnosis.performance import read_performance
from trackside_daemon.diagnosis.settings import CostSection
from trackside_daemon.history import clock_moves
from trackside_daemon.history.read import reader
from trackside_daemon.history.read.series import LogTails, samples
from trackside_daemon.model.families import training as f
from trackside_daemon.web.api.overview.rates import RateTracker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOUR, YEAR = 3600.0, 365 * 86400.0
EACH = 0.1
SET_AFTER, STEPS = 50, 160
MOVES = [-60.0, -HOUR, HOUR, -47 * YEAR, 12 * YEAR]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[InProcessDaemon]:
    made = InProcessDaemon(tmp_path)
    yield made
    made.close()


@pytest.fixture
def training(daemon: InProcessDaemon, tmp_path: Path) -> ScriptedTraining:
    return ScriptedTraining(daemon, tmp_path / "spool")


def move(seconds: float, daemon: InProcessDaemon | None, training: ScriptedTraining | None) -> None:
    """Set the clocks of a daemon and of a training forward."""
    if daemon is not None:
        daemon.moved += seconds
    if training is not None:
        training.moved += seconds


def train(
    daemon: InProcessDaemon, training: ScriptedTraining, first: int, last: int, loss: float | None = None
) -> None:
    """Make steps, with ticks of the daemon."""
    for step in range(first, last):
        training.wait(EACH)
        training.push(step, loss=1 / (step + 1) if loss is None else loss, tokens=10.0)
        if step % 10 == 0:
            daemon.tick({})


def page(daemon: InProcessDaemon) -> dict[str, float]:
    """Return what a scrape has of the training's one rank."""
    families = {"step": f.STEP, "loss": f.KNOWN["loss"], "last": f.LAST_STEP, "started": f.STARTED, "steps": f.STEPS}
    values = daemon.state.values(daemon.now.monotonic, *families.values())
    return {name: float(next(iter(found.values()))) for name, found in zip(families, values, strict=True)}  # type: ignore[arg-type]


def stored(daemon: InProcessDaemon) -> dict[str, Any]:
    """Return the run as the history has it, with its diagnosis, measures and times of samples."""
    while daemon.history.writer.call(lambda store: bool(store.due)).result(60):
        pass  # it is packed once it has ended
    with daemon.history.database.reading() as connection:
        tails = LogTails(connection)
        run = reader.run(connection, "train")
        found = {
            "run": run,
            "diagnosis": diagnose(connection, "train", CostSection()),
            "measures": read_measures(connection, "train", tails),
            "performance": read_performance(connection, "train", tails, 4),
            "moves": clock_moves.clock_moves(connection, 1, 0),
        }
        (series,) = reader.series(connection, "train", ["loss"])
    found["times"] = [time / 1e6 for _, times, _ in samples(daemon.history.database, series.series) for time in times]
    return found


@pytest.mark.parametrize("seconds", MOVES)
@pytest.mark.parametrize("owner", ["client", "daemon", "machine"])
def test_what_is_newest_and_how_long_it_took_do_not_depend_on_a_clock(
    daemon: InProcessDaemon, training: ScriptedTraining, owner: str, seconds: float
) -> None:
    rates = RateTracker(daemon.state)
    train(daemon, training, 0, SET_AFTER)
    before = page(daemon)
    rates.record(daemon.now.monotonic)
    move(seconds, None if owner == "client" else daemon, None if owner == "daemon" else training)
    train(daemon, training, SET_AFTER, 91)
    now = page(daemon)
    rates.record(daemon.now.monotonic)
    assert rates.run_rates(("train", 0), daemon.now.wall).tokens == pytest.approx(10 / EACH)
    assert now["step"] >= 89
    assert now["steps"] >= 90
    assert now["loss"] == pytest.approx(1 / (now["step"] + 1))
    assert now["last"] == pytest.approx(daemon.now.wall, abs=0.5)
    assert now["started"] == pytest.approx(before["started"] + daemon.moved, abs=0.01)
    assert {one.alert for one in daemon.alerts} == {"RunStarted"}
    train(daemon, training, 91, STEPS, nan)
    training.finish()
    assert {one.alert for one in daemon.alerts if one.severity != "info"} == {"NonFinite"}
    (alarm,) = (one for one in daemon.alerts if one.alert == "NonFinite")
    assert alarm.started == pytest.approx(WALL + daemon.moved + 92 * EACH, abs=0.01)
    (ended,) = (one for one in daemon.alerts if one.alert == "RunFinished")
    assert "after 16 s" in ended.summary
    found = stored(daemon)
    run, length = found["run"], STEPS * EACH
    assert (run["state"], run["step"]) == ("finished", STEPS - 1)
    for one in (run, *run["attempt_list"]):
        assert one["ended"] - one["started"] == pytest.approx(length, abs=0.01)
        assert one["ended"] == pytest.approx(WALL + daemon.moved + length, abs=0.01)
    ahead = [round(time - WALL - (step + 1) * EACH, 2) for step, time in enumerate(found["times"])]
    unsent = 3  # steps that are sent when the clock was set, with their age
    assert set(ahead[: SET_AFTER - unsent]) == {0.0}
    assert set(ahead[SET_AFTER:]) == {daemon.moved}
    assert sorted(ahead, reverse=daemon.moved < 0) == ahead
    assert found["diagnosis"]["wall_seconds"] == pytest.approx(length, abs=0.01)
    ledger = {account: seconds for account, seconds in found["diagnosis"]["ledger"].items() if seconds > 0.001}
    assert ledger == pytest.approx({"wasted": 6.9, "compute": 9.0, "start": EACH}, abs=0.25)
    assert found["measures"].step_seconds.value == pytest.approx(EACH, rel=0.01)
    assert found["measures"].step_rate.value == pytest.approx(1 / EACH, rel=0.01)
    assert found["performance"]["step"]["p99"] == pytest.approx([EACH] * 4, rel=0.01)
    assert len(found["moves"]) == (owner != "client")


def restarted(daemon: InProcessDaemon, place: Path) -> InProcessDaemon:
    """Return a daemon that goes on with the history of one that ends."""
    daemon.close()
    after = InProcessDaemon(place)
    after.after, after.moved = daemon.after, daemon.moved
    return after


@pytest.mark.parametrize("seconds", MOVES)
@pytest.mark.parametrize("owner", ["client", "machine"])
def test_a_clock_that_is_set_while_no_daemon_runs_changes_no_duration(
    tmp_path: Path, owner: str, seconds: float
) -> None:
    daemon = InProcessDaemon(tmp_path)
    training = ScriptedTraining(daemon, tmp_path / "spool")
    train(daemon, training, 0, SET_AFTER)
    training.send(everything=True)
    daemon = restarted(daemon, tmp_path)
    move(seconds, None if owner == "client" else daemon, training)
    training.greet(daemon)
    train(daemon, training, SET_AFTER, STEPS)
    assert page(daemon)["last"] == pytest.approx(daemon.now.wall, abs=0.5)
    training.finish()
    found = stored(daemon)
    daemon.close()
    assert found["run"]["ended"] - found["run"]["started"] == pytest.approx(STEPS * EACH, abs=0.01)
    assert found["run"]["ended"] == pytest.approx(daemon.now.wall, abs=0.01)
    assert found["diagnosis"]["ledger"]["compute"] == pytest.approx((STEPS - 1) * EACH, abs=0.01)
    assert found["measures"].step_rate.value == pytest.approx(1 / EACH, rel=0.01)
    assert len(found["moves"]) == (owner == "machine")
    assert {one.alert for one in daemon.alerts} == {"RunFinished"}


@pytest.mark.parametrize("seconds", MOVES)
def test_detectors_continue_over_a_restart_after_which_the_clock_was_set(tmp_path: Path, seconds: float) -> None:
    daemon = InProcessDaemon(tmp_path)
    training = ScriptedTraining(daemon, tmp_path / "spool")
    train(daemon, training, 0, 40)
    move(seconds, daemon, training)
    train(daemon, training, 40, 80)
    training.send(everything=True)
    daemon = restarted(daemon, tmp_path)
    past = PastRanks(daemon.history.database).next()
    assert past is not None
    daemon.close()
    gaps = [after - before for (before, _), (after, _) in pairwise(past.pushes)]
    assert gaps == pytest.approx([EACH] * (len(gaps)), abs=0.01)


@pytest.mark.parametrize("seconds", MOVES)
@pytest.mark.parametrize("owner", ["client", "machine"])
def test_what_an_ended_process_left_has_the_times_at_which_it_pushed(
    tmp_path: Path, owner: str, seconds: float
) -> None:
    daemon = InProcessDaemon(tmp_path)
    training = ScriptedTraining(daemon, tmp_path / "spool", silent=True)
    train(daemon, training, 0, SET_AFTER)
    move(seconds, None if owner == "client" else daemon, training)
    train(daemon, training, SET_AFTER, STEPS)
    training.finish()
    daemon.after += 5.0
    training.deliver_late(daemon)
    found = stored(daemon)
    daemon.close()
    expected = [WALL + daemon.moved + (step + 1) * EACH for step in range(STEPS)]
    assert found["times"] == pytest.approx(expected, abs=0.01)
    assert found["run"]["state"] == "finished"
    assert found["run"]["ended"] == pytest.approx(WALL + daemon.moved + STEPS * EACH, abs=0.01)
    assert found["run"]["ended"] - found["run"]["started"] == pytest.approx(STEPS * EACH, abs=0.01)


def test_what_a_process_of_another_boot_left_is_not_from_the_future(tmp_path: Path) -> None:
    daemon = InProcessDaemon(tmp_path)
    training = ScriptedTraining(daemon, tmp_path / "spool", silent=True, boot="before", started=12345.0)
    train(daemon, training, 0, SET_AFTER)
    training.moved = 12 * YEAR
    train(daemon, training, SET_AFTER, STEPS)
    training.finish()
    training.deliver_late(daemon)
    found = stored(daemon)
    daemon.close()
    assert max(found["times"]) <= daemon.now.wall
    assert WALL - 1 <= found["run"]["started"] <= found["run"]["ended"] <= daemon.now.wall


@pytest.mark.parametrize("seconds", [0.0, *MOVES])
def test_the_clock_of_another_machine_does_not_matter(tmp_path: Path, seconds: float) -> None:
    daemon = InProcessDaemon(tmp_path)
    training = ScriptedTraining(daemon, tmp_path / "spool", boot="another", moved=-700.0, started=-40.0)
    train(daemon, training, 0, SET_AFTER)
    training.moved += seconds
    train(daemon, training, SET_AFTER, STEPS)
    assert page(daemon)["last"] == pytest.approx(daemon.now.wall, abs=0.5)
    assert page(daemon)["started"] == pytest.approx(WALL, abs=0.01)
    training.finish()
    found = stored(daemon)
    daemon.close()
    assert found["times"] == pytest.approx([WALL + (step + 1) * EACH for step in range(STEPS)], abs=0.01)
    assert (found["run"]["started"], found["run"]["ended"]) == pytest.approx((WALL, WALL + STEPS * EACH), abs=0.01)
    assert found["moves"] == []
    assert {one.alert for one in daemon.alerts} == {"RunStarted", "RunFinished"}
