"""The detectors of a rank together: batches give the same findings as single rows, and keys of a role do not mix."""

from __future__ import annotations

import math
import random
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from trackside_daemon.detectors.base import Column, Context
from trackside_daemon.detectors.rank_detectors import _DETECTORS, KEYS, RankDetectors
from trackside_daemon.detectors.settings import DEFAULTS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trackside_daemon.detectors.base import Detection


LOSSES = [f"loss/{number}" for number in range(10 * KEYS)]


def troubled(chance: random.Random, count: int) -> tuple[list[int], dict[str, list[float]]]:
    """Return a training with spikes, slow steps and a leak, and perhaps with NaN and a restart from a checkpoint."""
    halved = chance.random() < 0.5
    pushed = {
        "loss": [2 + 3 * math.exp(-row / 80) + chance.gauss(0, 0.01) for row in range(count)],
        "grad_norm": [math.exp(chance.gauss(0, 0.2)) for _ in range(count)],
        "lr": [3e-4 * (0.5 ** (row // 200) if halved else 1 + row // 150 % 2) for row in range(count)],
        "step_duration_seconds": [
            0.2 * math.exp(chance.gauss(0, 0.03)) * (5 if chance.random() < 0.02 else 1) for _ in range(count)
        ],
        "process_resident_bytes": [
            4e9 + row * 1e6 * (row > count // 2) + chance.random() * 1e7 for row in range(count)
        ],
        "other": [0.0] * count,
    }
    for _ in range(8):
        row = chance.randrange(20, count)
        pushed["loss"][row] *= chance.uniform(1.1, 4)
        pushed["grad_norm"][row] *= chance.choice([1, chance.uniform(2, 200)])
    if chance.random() < 0.3:
        row = chance.randrange(20, count - 5)
        pushed["loss"][row : row + 5] = [math.nan] * 5
    steps = list(range(count))
    if chance.random() < 0.4:
        begun = chance.randrange(30, count)
        back = chance.randrange(1, begun)
        steps[begun:] = [step - back for step in steps[begun:]]
    return steps, pushed


def found(
    steps: Sequence[int], pushed: dict[str, list[float]], cuts: Sequence[int]
) -> list[tuple[int, str, Detection]]:
    """Return the detections when the columns arrive in pieces between *cuts*."""
    every = RankDetectors()
    return sorted(
        (start + one.at, key, one._replace(at=0))
        for start, end in pairwise(cuts)
        for key, one in every.evaluate(
            {
                key: Column(steps[start:end], [0.2 * row for row in range(start, end)], values[start:end])
                for key, values in pushed.items()
            }
        )
    )


@pytest.mark.parametrize("seed", range(20))
def test_batches_give_the_same_findings_as_single_rows(seed: int) -> None:
    chance = random.Random(seed)
    count = chance.choice([300, 1500])
    steps, pushed = troubled(chance, count)
    singly = found(steps, pushed, range(count + 1))
    assert singly
    cuts = sorted({0, count, *chance.sample(range(1, count), chance.choice([0, 3, 20]))})
    assert found(steps, pushed, cuts) == singly


@pytest.mark.parametrize("seed", range(5))
def test_what_is_found_does_not_depend_on_what_follows(seed: int) -> None:
    chance = random.Random(seed)
    steps, pushed = troubled(chance, 600)
    cut = chance.randrange(100, 600)
    whole = found(steps, pushed, [0, 600])
    assert found(steps[:cut], pushed, [0, cut]) == [one for one in whole if one[0] < cut]


def test_the_learning_rates_of_parameter_groups_are_not_mistaken_for_one_that_rises() -> None:
    every = RankDetectors()
    for step in range(50):
        for key, rate in (("lr/group0", 1e-3), ("lr/group1", 1e-4)):
            assert not list(every.evaluate({key: Column([step], [0.0], [rate])}))
    assert (every.context.rates_raised, every.context.learning_rate) == ([], 1e-3)


def test_the_norm_of_a_layer_is_not_that_of_the_model() -> None:
    every = RankDetectors()
    for step in range(50):
        list(
            every.evaluate(
                {"layer.0/grad_norm": Column([step], [0.0], [1.0]), "grad_norm": Column([step], [0.0], [5.0])}
            )
        )
    list(every.evaluate({"layer.0/grad_norm": Column([50], [0.0], [9.0]), "grad_norm": Column([50], [0.0], [5.0])}))
    assert every.context.gradients[50] == 1.0


@pytest.mark.parametrize(
    ("keys", "alarmed"),
    [
        (["grad_norm/head", "grad_norm"], {"grad_norm"}),
        (["grad_norm/head", "grad_norm_local_squared"], {"grad_norm_local_squared"}),
        (["grad_norm/discriminator", "grad_norm/generator"], {"grad_norm/discriminator", "grad_norm/generator"}),
    ],
)
def test_layers_that_are_sent_beside_the_norm_are_not_watched(keys: list[str], alarmed: set[str]) -> None:
    every = RankDetectors()
    values = [1.0] * 50 + [math.nan] * 50
    columns = {key: Column(range(100), [0.0] * 100, values) for key in keys}
    assert {key for key, _ in every.evaluate(columns)} == alarmed


def test_a_step_may_be_pushed_in_parts_and_the_norm_is_known_when_its_loss_comes() -> None:
    every = RankDetectors()
    for step in range(30):
        list(every.evaluate({"grad_norm": Column([step], [0.0], [1.0 if step < 29 else 50.0])}))
        list(every.evaluate({"loss": Column([step], [0.0], [2.0])}))
    assert every.context.gradients[29] == pytest.approx(50.0)


def test_after_a_restart_nothing_of_the_steps_that_come_again_is_known() -> None:
    every = RankDetectors()
    steps = [*range(30), *range(20, 25)]
    list(every.evaluate({"grad_norm": Column(steps, [0.0] * 35, [1.0] * 35)}))
    assert sorted(every.context.gradients) == [20, 21, 22, 23, 24]


def test_of_losses_without_end_the_shortest_of_the_first_are_watched() -> None:
    every = RankDetectors()
    broken = Column([0], [0.0], [math.nan])
    watched = {found.key for found in every.evaluate(dict.fromkeys((*LOSSES, "loss"), broken))}
    assert len(watched) == KEYS
    assert "loss" in watched
    later = {found.key for found in every.evaluate({key: broken._replace(steps=[1]) for key in (*LOSSES, "lr")})}
    assert later <= watched


EXTREMES = [0.0, 5e-324, 1e-308, 1e155, 1e200, 1e308, -1e308, math.nan, math.inf, -math.inf, 1.0, 1.0, 1.0, 2.0, -1.0]


@pytest.mark.parametrize("role", _DETECTORS)
def test_no_number_stops_a_detector(role: str, count: Callable[[int, int], int]) -> None:
    for seed in range(count(60, 300)):
        chance = random.Random(seed)
        values: list[float] = []
        while len(values) < 400:
            level, rough = chance.choice(EXTREMES), chance.random() < 0.5
            values += [level * math.exp(chance.gauss(0, 0.1) * rough) for _ in range(chance.choice([1, 3, 10, 60]))]
        column = Column(range(len(values)), [float(at) for at in range(len(values))], values)
        for made in _DETECTORS[role]:
            list(made(DEFAULTS).evaluate(column, Context()))
