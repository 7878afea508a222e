"""Weights that no longer change, by the update ratio and by losses that repeat."""

from __future__ import annotations

from detectors.losses import column, falling, found, one_by_one

from trackside_daemon.detectors.base import Context
from trackside_daemon.detectors.loss_plateau import Frozen, LossRepeats


def test_an_update_ratio_of_zero_is_a_warning_after_300_steps_until_it_rises() -> None:
    ratios = column([*[1e-3] * 50, *[0.0] * 40, 1e-3], [*range(0, 910, 10)])
    findings = found(Frozen(), ratios)
    assert [(one.at, one.alert, one.severity, one.over) for one in findings] == [
        (80, "LossPlateau", "warning", False),
        (90, "LossPlateau", "warning", True),
    ]
    assert "from step 500 to step 800" in findings[0].text
    assert one_by_one(Frozen, ratios) == findings


def test_a_learning_rate_of_zero_explains_it() -> None:
    context = Context()
    context.rates = {0: 0.0}
    assert not found(Frozen(), column([0.0] * 1000), context)


def test_a_loss_that_repeats_exactly_is_found_within_100_steps() -> None:
    values = column([*falling(300, noise=0), *[2.1] * 200, 2.0])
    findings = found(LossRepeats(), values)
    assert [(one.at, one.severity, one.over) for one in findings] == [(400, "info", False), (500, "info", True)]
    assert "repeats exactly from step 300 to step 400" in findings[0].text
    assert one_by_one(LossRepeats, values) == findings


def test_a_loss_with_few_digits_or_at_zero_repeats_by_nature() -> None:
    assert not found(LossRepeats(), column([round(value, 2) for value in falling(3000, noise=0)]))
    assert not found(LossRepeats(), column([*falling(300, noise=0), *[0.0] * 200]))
    assert not found(LossRepeats(), column([float(i // 10) for i in range(2000)]))
