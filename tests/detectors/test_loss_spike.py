"""A loss that jumps, and a batch that is hard."""

from __future__ import annotations

import random

import pytest
from detectors.losses import alarms, column, ends, falling, found

from trackside_daemon.detectors.base import Context
from trackside_daemon.detectors.loss_spike import LossSpike
from trackside_daemon.detectors.rank_detectors import RankDetectors


def _with(values: list[float], at: int, *heights: float) -> list[float]:
    return (
        values[:at]
        + [value * height for value, height in zip(values[at:], heights, strict=False)]
        + values[at + len(heights) :]
    )


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("noise", [0.0, 0.005, 0.03])
def test_a_healthy_run_is_quiet(seed: int, noise: float) -> None:
    assert not found(LossSpike(), column(falling(5000, noise=noise, seed=seed)))


@pytest.mark.parametrize("at", [14, 20, 64, 500])
def test_a_jump_is_found_at_its_sample_and_described(at: int) -> None:
    findings = found(LossSpike(), column(_with(falling(600), at, 2.5, 2.2, 1.8, 1.4)))
    assert (findings[0].alert, findings[0].at, findings[0].severity) == ("LossHardBatch", at, "info")
    assert f"at step {at}, 2." in findings[0].text
    assert "times the" in findings[0].text
    assert (alarms(findings, "LossSpike")[0], findings[2].severity) == (at + 3, "info")


def test_it_is_over_when_five_samples_in_a_row_are_back() -> None:
    findings = found(LossSpike(), column(_with(falling(600), 300, 2.5, 2.2, 1.8, 1.6)))
    assert ends(findings, "LossSpike") == [308]
    assert "4 samples were above" in findings[-1].text


def test_a_batch_that_is_hard_is_information_and_passes() -> None:
    findings = found(LossSpike(), column(_with(falling(600), 300, 1.4)))
    assert [(finding.alert, finding.severity, finding.at, finding.over) for finding in findings] == [
        ("LossHardBatch", "info", 300, False),
        ("LossHardBatch", "info", 305, True),
    ]
    assert "a single hard batch" in findings[-1].text


def test_a_seeming_hard_batch_is_a_spike_at_its_fourth_high_sample() -> None:
    findings = found(LossSpike(), column(_with(falling(600), 300, 1.4, 1.4, 1.3, 1.3)))
    assert [(finding.alert, finding.at, finding.over) for finding in findings[:3]] == [
        ("LossHardBatch", 300, False),
        ("LossHardBatch", 303, True),
        ("LossSpike", 303, False),
    ]
    assert "since step 300" in findings[2].text


def test_the_gradient_norm_is_in_the_text() -> None:
    values = column(_with(falling(600), 300, 1.4))
    context = Context()
    context.gradients = {300: 4.1}
    assert "the gradient norm agrees (4.1 times its recent level)" in found(LossSpike(), values, context)[0].text
    context.gradients = {300: 1.1}
    assert "does not move" in found(LossSpike(), values, context)[0].text


def test_a_raised_learning_rate_is_named() -> None:
    context = Context()
    context.rates_raised = [10, 290, 400]
    assert "raised at step 290" in found(LossSpike(), column(_with(falling(600), 300, 3)), context)[0].text


def test_a_spike_hides_no_second_one() -> None:
    values = _with(_with(falling(600), 300, 6.0, 5.0, 4.0, 3.0), 340, 2.5, 2.5, 2.5, 2.5)
    assert {303, 343} <= set(alarms(found(LossSpike(), column(values)), "LossSpike"))


def test_a_loss_that_stays_high_is_no_spike_for_ever() -> None:
    values = falling(600)
    values[300:] = [value + 3 for value in values[300:]]
    findings = found(LossSpike(), column(values))
    assert ends(findings, "LossSpike") == [364]
    assert "stays at" in findings[-1].text


def test_noise_that_has_two_levels_is_no_row_of_spikes() -> None:
    draw = random.Random(1)
    values = [3 + draw.gauss(0, 0.05) + (2 if draw.random() < 0.2 else 0) for _ in range(4000)]
    assert len(alarms(found(LossSpike(), column(values)), "LossSpike")) <= 8


def test_noise_that_grows_is_followed() -> None:
    draw = random.Random(2)
    values = [3 + draw.gauss(0, 0.01 if i < 500 else 0.2) for i in range(1500)]
    assert max(finding.at for finding in found(LossSpike(), column(values))) < 520


def test_a_loss_that_crosses_nought_is_quiet_and_its_jumps_are_found() -> None:
    draw = random.Random(3)
    values = [draw.gauss(0, 0.1) for _ in range(3000)]
    assert not found(LossSpike(), column(values))
    values[2000] = 5.0
    findings = found(LossSpike(), column(values))
    assert alarms(findings, "LossHardBatch") == [2000]
    assert "above the" in findings[0].text


def test_a_restart_ends_it_and_begins_anew() -> None:
    values = _with(falling(400), 297, 2.5, 2.5, 2.5, 2.5)[:301] + falling(400)[200:]
    samples = {"loss": column(values, [*range(301), *range(200, 400)])}
    findings = [one.finding for one in RankDetectors().evaluate(samples)]
    assert ends(findings, "LossSpike") == [301]
    assert "the training has started again at step 200" in {one.text for one in findings}
    assert alarms(findings, "LossSpike") == [300]


def test_a_jump_after_a_level_that_fell_at_once_is_found() -> None:
    values = [28 + 0.1 * (i % 3) for i in range(40)] + [2 - 0.02 * i for i in range(15)] + [5.8, 5.7, 5.6, 5.5]
    assert alarms(found(LossSpike(), column(values)), "LossSpike")[0] == 58


def test_jumps_that_come_back_by_themselves_are_information_however_high() -> None:
    values = _with(_with(falling(2000), 400, 3.0), 700, 30.0, 9.0)
    findings = found(LossSpike(), column(values))
    assert [(one.alert, one.at) for one in findings if not one.over] == [("LossHardBatch", 400), ("LossHardBatch", 700)]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("swing", [0.15, 1.0])
def test_a_blow_up_that_came_back_hides_no_spike(seed: int, swing: float) -> None:
    draw = random.Random(seed)
    high = [20 * draw.lognormvariate(0, swing) for _ in range(80)]
    values = falling(150, end=1, seed=seed) + high + [1 + draw.gauss(0, 0.05) for _ in range(60 + 40 * seed)]
    at = len(values)
    values += [3.0, 2.8, 2.5, 2.2, *[1 + draw.gauss(0, 0.05) for _ in range(30)]]
    assert at + 3 in alarms(found(LossSpike(), column(values)), "LossSpike")


@pytest.mark.parametrize("seed", range(8))
def test_a_steep_descent_hides_no_spike_after_it(seed: int) -> None:
    draw = random.Random(seed)
    level = [3.0] * (100 * (seed % 2)) + [1 + 30 * 0.5 ** (i / (8 + seed)) for i in range(115)]
    values = [one * (1 + draw.gauss(0, 0.02)) for one in (*level, 1.7, 1.7, 1.6, 1.5, *[1.0] * 20)]
    assert len(level) + 3 in alarms(found(LossSpike(), column(values)), "LossSpike")


def test_outliers_that_come_often_are_noise() -> None:
    draw = random.Random(7)
    values = [2 * (1 + draw.gauss(0, 0.02)) * (1.6 if draw.random() < 0.03 else 1) for _ in range(4000)]
    assert len([one for one in alarms(found(LossSpike(), column(values)), "LossHardBatch") if one > 500]) < 4
    lognormal = [draw.lognormvariate(0, 0.3) for _ in range(4000)]
    assert len(alarms(found(LossSpike(), column(lognormal)), "LossHardBatch")) < 3


def test_a_loss_with_few_digits_has_the_last_one_as_its_noise() -> None:
    values = [round(value, 4) for value in falling(1000, start=0.7, end=0.0001, noise=0.0)]
    assert not found(LossSpike(), column([*values, 0.0002, 0.0002, 0.0003, 0.0001]))
    assert found(LossSpike(), column([*values, 0.3]))


def test_a_huge_ratio_is_reported_as_more_than_a_thousand_times() -> None:
    context = Context()
    context.gradients = {300: 2e9}
    values = _with(falling(600), 300, 5000.0)
    text = found(LossSpike(), column(values), context)[0].text
    assert "more than 1,000 times the" in text
    assert "the gradient norm agrees (more than 1,000 times its recent level)" in text
