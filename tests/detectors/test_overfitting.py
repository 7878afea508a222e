"""An evaluation loss that turns away from the training loss."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
from detectors.losses import column, found

from trackside_daemon.detectors.base import Column, Context
from trackside_daemon.detectors.overfitting import Overfitting
from trackside_daemon.detectors.rank_detectors import RankDetectors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

EVERY = 100


def training(steps: int, *, falls: bool = True) -> list[float]:
    chance = Random(3)
    return [2 / (1 + step / 300 * falls) + chance.gauss(0, 0.02) for step in range(steps)]


def findings(losses: Sequence[float], evaluations: Sequence[float], every: int = EVERY) -> list[tuple[int, bool, str]]:
    """Return step, end and text of what is found, when the losses are pushed one by one with an evaluation now and then."""
    detectors, found_at = RankDetectors(), []
    for step, loss in enumerate(losses):
        pushes: list[Mapping[str, Column]] = [{"loss": Column([step], [0.0], [loss])}]
        if step % every == every - 1 and (number := step // every) < len(evaluations):
            pushes.append({"val/loss": Column([step], [0.0], [evaluations[number]])})
        for push in pushes:
            found_at += [
                (step, one.finding.over, one.finding.text)
                for one in detectors.evaluate(push)
                if one.finding.alert == "Overfitting"
            ]
    return found_at


def curve(*, turns: int, rise: float, count: int = 20, noise: float = 0.004) -> list[float]:
    """Return evaluations that fall as the training does until one of them, and rise from there by so much each."""
    chance = Random(5)
    values = [2 / (1 + min(number, turns) / 3) + 0.1 + rise * max(0, number - turns) for number in range(1, count + 1)]
    return [value + chance.gauss(0, noise) for value in values]


def test_an_evaluation_that_turns_away_is_found_once_with_its_best_step() -> None:
    ((step, over, text),) = findings(training(2000), curve(turns=8, rise=0.05))
    assert (step, over) == (1199, False)
    assert text == "best at step 799 (0.6463), +0.2 since, while the training loss fell from 0.5123 to 0.4126"


@pytest.mark.parametrize(
    ("losses", "evaluations"),
    [
        (training(2000), curve(turns=20, rise=0.0)),
        (training(2000), curve(turns=8, rise=0.0)),
        (training(2000, falls=False), curve(turns=8, rise=0.05)),
        (training(400), curve(turns=1, rise=0.5, count=4)),
        ([], curve(turns=8, rise=0.05)),
        (training(2000), curve(turns=8, rise=0.05, noise=0.3)),
    ],
    ids=["falls", "flat", "training does not fall", "four evaluations", "no training loss", "noise"],
)
def test_others_are_not_found(losses: Sequence[float], evaluations: Sequence[float]) -> None:
    assert findings(losses, evaluations) == []


def test_after_the_first_a_rise_as_those_from_which_it_came_back_is_none() -> None:
    """A rate that restarts raises the loss for some evaluations each time."""
    falls = [1 - number / 200 for number in range(60)]
    swings = [value + 0.15 * max(0, 1 - number % 12 / 6) for number, value in enumerate(falls)]
    assert [over for _, over, _ in findings(training(6000), swings)] == [False, True]
    lasting = [*swings, *(swings[-1] + 0.05 * number for number in range(1, 13))]
    assert [over for _, over, _ in findings(training(7200), lasting)] == [False, True, False]


def test_one_high_evaluation_is_none() -> None:
    evaluations = curve(turns=20, rise=0.0)
    evaluations[12] += 1
    assert findings(training(2000), evaluations) == []


def test_it_is_over_when_the_loss_falls_again() -> None:
    back = [*curve(turns=6, rise=0.05, count=12), 0.5, 0.4, 0.3, 0.3]
    assert [over for _, over, _ in findings(training(2000), back)] == [False, True]


def test_a_training_that_goes_back_begins_anew() -> None:
    evaluations = column(curve(turns=6, rise=0.05, count=12), [*range(100, 1300, 100)])
    again = column(curve(turns=20, rise=0.0, count=6), [*range(100, 700, 100)])
    both = column([*evaluations.values, *again.values], [*evaluations.steps, *again.steps])
    context = Context()
    context.losses = {step: 3 - step / 1000 for step in range(0, 1300, 20)}
    detected = found(Overfitting(), both, context)
    assert [(one.at, one.severity, one.over) for one in detected] == [(9, "info", False), (12, "info", True)]
