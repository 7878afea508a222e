"""A loss that has stopped falling."""

from __future__ import annotations

import random
from math import exp

import pytest
from detectors.losses import alarms, column, ends, falling, found

from trackside_daemon.detectors.base import Column, Context, Detection
from trackside_daemon.detectors.loss_plateau import LossPlateau


def _resting(count: int, level: float = 3.0, noise: float = 0.01) -> list[float]:
    draw = random.Random(5)
    return [level * (1 + draw.gauss(0, noise)) for _ in range(count)]


def test_a_loss_that_falls_is_quiet() -> None:
    draw = random.Random(6)
    values = [2 + 8 * (1 + i / 50) ** -0.5 + draw.gauss(0, 0.03) for i in range(20000)]
    assert not found(LossPlateau(), column(values))


def test_a_loss_that_rests_is_named_once_with_its_gain() -> None:
    findings = found(LossPlateau(), column(falling(1000) + _resting(5000)))
    assert len(alarms(findings, "LossPlateau")) == 1
    assert findings[0].severity == "info"
    assert "in the last" in findings[0].text


def test_it_is_over_when_the_loss_moves_again() -> None:
    values = _resting(2500) + [3.0 * 0.9997**i for i in range(2500)]
    findings = found(LossPlateau(), column(values))
    assert alarms(findings, "LossPlateau")
    assert ends(findings, "LossPlateau")


@pytest.mark.parametrize("noise", [0.02, 0.05])
def test_a_loss_that_stays_flat_in_its_noise_is_found_and_does_not_fall_again(noise: float) -> None:
    draw = random.Random(1)
    values = [(2 * exp(-min(i, 400) / 200) + 1) * (1 + draw.gauss(0, noise)) for i in range(6000)]
    assert [one.over for one in found(LossPlateau(), column(values))] == [False]
    assert [one.over for one in found(LossPlateau(), column(_resting(5000, noise=noise)))] == [False]


def test_it_is_over_when_the_learning_rate_falls() -> None:
    context = Context()
    context.rates = {i: 1e-3 if i < 1000 else 1e-4 for i in range(3000)}
    assert [one.text for one in found(LossPlateau(), column(_resting(1100)), context) if one.over] == [
        "the learning rate falls"
    ]


def test_noise_that_hides_any_gain_gives_no_finding() -> None:
    assert not found(LossPlateau(), column(_resting(5000, noise=0.5)))


def test_a_learning_rate_that_falls_explains_it() -> None:
    detector, context = LossPlateau(), Context()
    findings: list[Detection] = []
    for i, value in enumerate(_resting(5000)):
        context.rates = {i: 1e-3 * (1 - i / 5000)}
        findings += detector.evaluate(Column([i], [0.0], [value]), context)
    assert not findings
