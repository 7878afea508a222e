"""Evaluations, checkpoints and waits before the first step and after the last one are no part of the time between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from in_process_daemon import InProcessDaemon
from scripted_training import ScriptedTraining

from trackside_daemon.cli.run.summary import speeds
from trackside_daemon.diagnosis.accounts import read_run
from trackside_daemon.diagnosis.diagnosis import diagnose
from trackside_daemon.diagnosis.settings import CostSection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

STEPS, EACH = 30, 0.1


class Figures(NamedTuple):
    """The duration of a step in the summary, the seconds by account in `why`, and the goodput of the run."""

    step: float | None
    ledger: dict[str, float]
    goodput: float


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[InProcessDaemon]:
    made = InProcessDaemon(tmp_path)
    yield made
    made.close()


@pytest.fixture
def training(daemon: InProcessDaemon, tmp_path: Path) -> ScriptedTraining:
    return ScriptedTraining(daemon, tmp_path / "spool")


def steps(training: ScriptedTraining, first: int = 0, number: int = STEPS) -> None:
    for step in range(first, first + number):
        training.wait(EACH)
        training.push(step, loss=1 / (step + 1))


def figures(daemon: InProcessDaemon) -> Figures:
    daemon.history.writer.call(lambda _: None).result(60)
    with daemon.history.database.reading() as connection:
        run = read_run(connection, "train")
        ledger: dict[str, float] = diagnose(connection, "train", CostSection())["ledger"]
    return Figures(speeds(run).step, ledger, run.get("goodput", 1.0))


def pause(training: ScriptedTraining, *phases: str, seconds: float = 3.0) -> None:
    for phase in phases:
        with training.phase(phase):
            training.wait(seconds)


def at_the_end(training: ScriptedTraining) -> None:
    steps(training)
    pause(training, "eval")


def checkpoint_at_the_end(training: ScriptedTraining) -> None:
    steps(training)
    pause(training, "save")


def both_at_the_end(training: ScriptedTraining) -> None:
    steps(training)
    pause(training, "validation", "checkpoint", seconds=1.5)


def with_a_push_of_its_result(training: ScriptedTraining) -> None:
    steps(training)
    pause(training, "eval")
    training.push(STEPS - 1, **{"eval/loss": 0.5})


def before_the_first_step(training: ScriptedTraining) -> None:
    pause(training, "eval")
    steps(training)


def in_the_middle(training: ScriptedTraining) -> None:
    steps(training, number=STEPS // 2)
    pause(training, "eval")
    steps(training, STEPS // 2, STEPS // 2)


def in_all_places(training: ScriptedTraining) -> None:
    pause(training, "eval", seconds=1.0)
    steps(training, number=STEPS // 2)
    pause(training, "eval", seconds=1.0)
    steps(training, STEPS // 2, STEPS // 2)
    pause(training, "eval", seconds=1.0)


def that_nothing_ends(training: ScriptedTraining) -> None:
    steps(training)
    with training.phase("eval"):
        training.wait(3.0)
        training.finish()


@pytest.mark.parametrize(
    "trains",
    [
        at_the_end,
        checkpoint_at_the_end,
        both_at_the_end,
        with_a_push_of_its_result,
        before_the_first_step,
        in_the_middle,
        in_all_places,
        that_nothing_ends,
    ],
)
def test_pauses_are_subtracted_from_the_time_in_which_they_were(
    daemon: InProcessDaemon, training: ScriptedTraining, trains: Callable[[ScriptedTraining], None]
) -> None:
    trains(training)
    if not training.session.ended:
        training.finish()
    found = figures(daemon)
    paused = found.ledger.pop("eval", 0.0) + found.ledger.pop("checkpoint", 0.0)
    assert found.step == pytest.approx(EACH)
    assert paused == pytest.approx(3.0, abs=0.2)
    assert found.ledger["compute"] == pytest.approx((STEPS - 1) * EACH, abs=0.2)
    assert sum(found.ledger.values()) + paused == pytest.approx(STEPS * EACH + 3.0)
    assert found.goodput == pytest.approx(found.ledger["compute"] / (STEPS * EACH + 3.0), abs=0.01)


def test_the_wait_for_the_first_batch_is_a_wait_and_no_start(
    daemon: InProcessDaemon, training: ScriptedTraining
) -> None:
    pause(training, "data")
    steps(training)
    training.finish()
    found = figures(daemon)
    assert found.ledger["data"] == pytest.approx(3.0, abs=0.2)
    assert found.ledger["compute"] == pytest.approx((STEPS - 1) * EACH, abs=0.2)


def test_sessions_of_one_rank_are_summed(daemon: InProcessDaemon, training: ScriptedTraining, tmp_path: Path) -> None:
    steps(training, number=STEPS // 2)
    pause(training, "eval")
    second: Any = ScriptedTraining(daemon, tmp_path / "spool")
    training.finish()
    steps(second, STEPS // 2, STEPS // 2)
    pause(second, "eval")
    second.finish()
    found = figures(daemon)
    assert found.step == pytest.approx(EACH)
    assert found.ledger["eval"] == pytest.approx(6.0, abs=0.4)
    assert found.ledger["compute"] == pytest.approx(STEPS * EACH, abs=0.4)


def test_after_a_restart_of_the_daemon_the_pauses_before_it_are_known(
    daemon: InProcessDaemon, training: ScriptedTraining
) -> None:
    pause(training, "eval")
    steps(training, number=STEPS // 2)
    training.send(everything=True)
    daemon.history.writer.call(lambda store: store.reset()).result(60)
    steps(training, STEPS // 2, STEPS // 2)
    training.finish()
    found = figures(daemon)
    assert found.ledger["eval"] == pytest.approx(3.0, abs=0.2)
    assert found.ledger["compute"] == pytest.approx((STEPS - 1) * EACH, abs=0.2)


def test_pauses_before_the_writer_has_forgotten_a_session_are_not_moved_behind_its_last_step(
    daemon: InProcessDaemon, tmp_path: Path
) -> None:
    training = ScriptedTraining(daemon, tmp_path / "spool", sent_each=100.0)
    steps(training, number=STEPS // 2)
    pause(training, "eval")
    training.send(everything=True)
    daemon.history.writer.call(lambda store: store.reset()).result(60)
    steps(training, STEPS // 2, STEPS // 2)
    training.wait(3.0)
    training.finish()
    found = figures(daemon)
    assert found.ledger["idle_after"] == pytest.approx(3.0, abs=0.2)
    assert found.ledger["compute"] == pytest.approx((STEPS - 1) * EACH, abs=0.2)
