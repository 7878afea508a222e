"""A loss whose level rises and stays."""

from __future__ import annotations

import random
from math import exp

import pytest
from detectors.losses import alarms, column, ends, falling, found

from trackside_daemon.detectors.base import Context
from trackside_daemon.detectors.loss_diverging import LossDiverging
from trackside_daemon.detectors.rank_detectors import RankDetectors


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("noise", [0.0, 0.01, 0.1])
def test_a_healthy_run_is_quiet(seed: int, noise: float) -> None:
    assert not found(LossDiverging(), column(falling(5000, noise=noise, seed=seed)))


def test_a_level_that_rises_at_once_is_found_within_its_samples() -> None:
    values = falling(1000)
    values[700:] = [value * 1.6 for value in values[700:]]
    findings = found(LossDiverging(), column(values))
    assert [one.severity for one in findings if not one.over] == ["info", "warning", "critical"]
    first, second, third = alarms(findings, "LossDiverging")
    assert 708 <= first <= 716
    assert 16 <= second - first <= 48
    assert 32 <= third - first <= 96
    assert "loss has risen to" in findings[0].text


def test_a_loss_that_rises_as_slowly_as_it_fell_is_a_warning_once_all_is_lost() -> None:
    values = falling(400, noise=0.01)
    begun = [values[-1] * 1.004**i for i in range(400)]
    findings = found(LossDiverging(), column([*values, *begun]))
    firing = [finding for finding in findings if not finding.over]
    assert [one.severity for one in firing] == ["info", "warning"]
    assert 400 < firing[0].at < 600
    assert begun[firing[1].at - 400] > 0.98 * values[0]


def test_a_part_of_a_loss_that_is_weighed_more_and_more_is_information() -> None:
    """An annealed penalty lets the loss rise by a tenth of its fall, in twice the time that this took."""
    draw = random.Random(1)
    values = [4 + 40 * 0.93**i + 5 * min(1, i / 400) + draw.gauss(0, 0.1) for i in range(1500)]
    assert {one.severity for one in found(LossDiverging(), column(values))} == {"info"}


def test_what_was_learnt_counts_from_the_first_losses_even_if_they_are_logged_rarely() -> None:
    values = [1.3, 0.2, 0.003, *[0.0003] * 100, *[0.0009] * 200]
    assert {one.severity for one in found(LossDiverging(), column(values))} <= {"info"}


def test_a_spike_that_decays_is_information() -> None:
    values = falling(600)
    values[300:] = [value * (1 + 3 * 0.85**i) for i, value in enumerate(values[300:])]
    assert {one.severity for one in found(LossDiverging(), column(values))} == {"info"}


@pytest.mark.parametrize("noise", [0.005, 0.02])
def test_a_jump_that_lasts_is_a_warning_in_a_loss_that_has_just_fallen(noise: float) -> None:
    draw = random.Random(1)
    falls = [(2 * exp(-min(i, 800) / 300) + 1) * (1 + draw.gauss(0, noise)) for i in range(1600)]
    findings = found(LossDiverging(), column([one * (1.28 if i >= 800 else 1) for i, one in enumerate(falls)]))
    assert [one.severity for one in findings if not one.over] == ["info", "warning"]
    assert 800 < findings[0].at < 825


def test_the_descent_and_outliers_are_no_noise_that_a_rise_must_exceed() -> None:
    draw = random.Random(2)
    short = [0.015 + 0.35 / (1 + (i / 100) ** 3) if i < 385 else 0.12 for i in range(985)]
    findings = found(LossDiverging(), column([abs(one + 0.5 * one * draw.gauss(0, 1)) for one in short]))
    assert 385 < findings[0].at < 415
    assert findings[1].severity == "warning"
    heavy = [0.5 / (1 + i / 5) ** 1.2 + 0.002 if i < 580 else 0.08 for i in range(1050)]
    values = [one * abs(draw.gauss(0, 1)) + (9 if draw.random() < 0.04 else 0) for one in heavy]
    assert 580 < found(LossDiverging(), column(values))[0].at < 595


def test_a_loss_that_is_mostly_zero_is_quiet() -> None:
    draw = random.Random(4)
    values = [draw.gauss(0, 0.01) if draw.random() < 0.4 else 0.0 for _ in range(2000)]
    assert not found(LossDiverging(), column(values))


def test_a_rise_beyond_the_initial_loss_is_critical_within_a_minute() -> None:
    values = [one * (2 if i >= 400 else 1) * (4 if i >= 450 else 1) for i, one in enumerate(falling(500))]
    samples = column(values)._replace(times=[i / 1000 for i in range(500)])
    assert [one.severity for one in found(LossDiverging(), samples)] == ["info", "warning", "critical"]


def test_a_level_of_quick_steps_is_accepted_only_after_it_could_become_critical() -> None:
    values = falling(1000)
    values += [values[-1] * 2.2 * (1 + 0.02 * (i % 3)) for i in range(4000)]
    samples = column(values)._replace(times=[i / 40 for i in range(5000)])
    findings = found(LossDiverging(), samples)
    assert [one.severity for one in findings if not one.over] == ["info", "warning", "critical"]
    assert ends(findings, "LossDiverging")


def test_it_is_over_when_the_loss_is_back() -> None:
    values = falling(900)
    values[500:700] = [value * 2 for value in values[500:700]]
    findings = found(LossDiverging(), column(values))
    assert 700 <= ends(findings, "LossDiverging")[0] <= 716
    assert alarms(findings, "LossDiverging")[-1] < 700


@pytest.mark.parametrize("memory", [0.9, 0.98, 0.995])
def test_a_loss_that_wanders_is_quiet(memory: float) -> None:
    draw, off, values = random.Random(5), 0.0, []
    for one in falling(4000):
        off = memory * off + draw.gauss(0, 0.1 * (1 - memory**2) ** 0.5)
        values.append(one * (1 + off))
    assert not found(LossDiverging(), column(values))


@pytest.mark.parametrize("seed", range(3))
def test_a_loss_of_much_noise_that_stays_where_it_is_warns_of_nothing(seed: int) -> None:
    """The lowest level of such a loss is a chance, to which it does not come back."""
    draw = random.Random(seed)
    values = [(1 + 4 * exp(-step / 500)) * (1 + 0.3 * draw.gauss(0, 1)) for step in range(12_000)]
    assert _severities(values) <= {"info"}


def test_a_rise_after_a_height_that_is_over_is_critical_though_most_levels_were_as_high() -> None:
    draw = random.Random(1)
    learnt = [1 + 4 * exp(-step / 300) for step in range(2000)]
    values = [level * (1 + draw.gauss(0, 0.01)) for level in (*learnt, *[4.0] * 1000, *[1.02] * 600, *[3.0] * 400)]
    findings = found(LossDiverging(), column(values))
    assert [one.severity for one in findings if one.at >= 3600 and not one.over] == ["info", "warning", "critical"]


def _severities(values: list[float]) -> set[str]:
    return {one.severity for one in found(LossDiverging(), column(values)) if not one.over}


def test_what_undoes_next_to_nothing_of_what_was_learnt_is_information() -> None:
    values = [*falling(1000, start=8, end=0.01), *falling(3000, start=0.011, end=0.01)]
    assert _severities([*values, *(3 * one for one in values[-200:])]) <= {"info"}
    assert _severities([*values, *(one + 1 for one in values[-200:])]) == {"info", "warning", "critical"}


def test_a_level_that_stays_is_accepted() -> None:
    values = falling(600)
    values += [value * 1.5 for value in [values[-1]] * 1400]
    findings = found(LossDiverging(), column(values))
    assert (findings[-1].over, findings[-1].accepted) == (True, True)
    assert "which is now its accepted level" in findings[-1].text


def test_a_raised_learning_rate_is_named() -> None:
    values = falling(900)
    values[600:] = [value * 1.6 for value in values[600:]]
    context = Context()
    context.rates_raised = [599]
    assert "raised at step 599" in found(LossDiverging(), column(values), context)[0].text


def test_a_restart_forgets_the_lowest() -> None:
    values = falling(400) + falling(400)[100:]
    context = Context()
    context.restarts = {100: True}
    assert not found(LossDiverging(), column(values[400:], range(100, 400)), context)
    steps = column(values, [*range(400), *range(100, 400)])
    assert "LossDiverging" not in {one.finding.alert for one in RankDetectors().evaluate({"loss": steps})}


def test_a_step_count_that_starts_anew_does_not_forget_the_level() -> None:
    draw = random.Random(3)
    values = [2.2 * (1 + draw.gauss(0, 0.02)) for _ in range(1000)] + [
        30 * (1 + draw.gauss(0, 0.05)) for _ in range(400)
    ]
    samples = column(values, [*range(1000), *range(400)])
    found = [(one.finding.alert, one.finding.severity) for one in RankDetectors().evaluate({"loss": samples})]
    assert {("LossSpike", "info"), ("LossDiverging", "critical")} <= set(found)
    epochs = column([*falling(500), *falling(200, start=4.5, end=4.5)], [i % 20 for i in range(700)])
    assert "warning" in {one.finding.severity for one in RankDetectors().evaluate({"loss": epochs})}


@pytest.mark.parametrize("count", [400, 4000])
def test_a_new_model_has_one_warning(count: int) -> None:
    samples = column(falling(count, start=8, end=0.5) * 2)
    told = {one.finding.alert for one in RankDetectors().evaluate({"loss": samples}) if one.finding.severity != "info"}
    assert told == {"LossRestart"}


def test_a_loss_that_stays_at_its_initial_value_has_diverged() -> None:
    samples = column([*falling(400, start=8, end=0.5), *falling(200, start=7.5, end=7.5)])
    told = {(one.finding.alert, one.finding.severity) for one in RankDetectors().evaluate({"loss": samples})}
    assert ("LossDiverging", "critical") in told


def test_a_rise_after_a_warm_restart_of_the_learning_rate_is_not_reported() -> None:
    values = falling(900)
    values[600:] = [2 * values[300]] * 300
    context = Context()
    for restarts in (False, True):
        context.rates = {step: 0.1 if restarts and 300 <= step < 600 else 1.0 for step in range(900)}
        severities = {one.severity for one in found(LossDiverging(), column(values), context)}
        assert not severities if restarts else "warning" in severities


def noticed(values: list[float]) -> set[str]:
    """Return the alerts above information."""
    found = RankDetectors().evaluate({"loss": column(values)})
    return {one.finding.alert for one in found if one.finding.severity != "info"}


def test_a_rise_to_a_noisy_level_is_sudden() -> None:
    draw = random.Random(11)

    def heavy(level: float) -> float:
        return level * abs(draw.gauss(0, 1)) + (9 if draw.random() < 0.04 else 0)

    values = [heavy(0.5 / (1 + i / 5) ** 1.2 + 0.002) for i in range(580)] + [heavy(0.08) for _ in range(470)]
    assert "LossDiverging" in noticed(values)


def test_a_loss_below_zero_that_loses_a_third_of_what_it_learnt_is_a_warning() -> None:
    similarity = [one - 1 for one in falling(600, start=1.0, end=0.3)]
    assert noticed(similarity + [one + 0.26 for one in similarity[500:] * 2]) == {"LossDiverging"}


@pytest.mark.parametrize("half", [15, 60], ids=["folds that fall fast", "folds that fall slowly"])
def test_trainings_one_after_the_other_have_one_warning_at_most(half: float) -> None:
    draw = random.Random(3)
    values = [(0.1 + 2.2 * 0.5 ** (i % 200 / half)) * (1 + draw.gauss(0, 0.05)) for i in range(1600)]
    assert noticed(values) <= {"LossRestart"}


@pytest.mark.parametrize("every", [200, 350])
def test_a_target_that_is_replaced_at_equal_distances_is_quiet(every: int) -> None:
    """The loss of a Q network leaps to its initial value with each new target, falls faster than at first, and then rises slowly."""
    draw = random.Random(3)
    values = [
        (0.6 * 0.5 ** (i % every / (25 if i < every else 8)) + 0.02 * (1 + i // every)) * draw.lognormvariate(0, 0.1)
        for i in range(8 * every)
    ]
    assert not noticed(values)


@pytest.mark.parametrize("seed", range(4))
def test_a_rise_of_two_deviations_is_found_in_a_short_training_once_it_has_stayed(seed: int) -> None:
    """The loss of a quantile has a heavy tail; its training starts anew."""
    draw = random.Random(seed)
    levels = [0.4 + 0.4 * 0.5 ** (i / 40) for i in range(360)] + [0.8] * 240
    values = [level * draw.lognormvariate(0, 0.4) for level in levels]
    assert not found(LossDiverging(), column(values[:360]))
    findings = found(LossDiverging(), column(values))
    assert findings
    assert 360 <= findings[0].at < 460


def test_a_rise_to_five_times_a_low_loss_is_a_warning_though_it_is_little_of_the_fall() -> None:
    draw = random.Random(1)
    levels = [1.6 * 0.5 ** (i / 60) + 0.03 for i in range(400)] + [0.16] * 200
    findings = found(LossDiverging(), column([level * draw.lognormvariate(0, 0.1) for level in levels]))
    assert any(one.severity == "warning" and one.at < 500 for one in findings)
    assert findings[0].at >= 400


def test_a_spike_states_the_tests_of_its_first_sample() -> None:
    rank = RankDetectors()
    values = falling(400, noise=0.01)
    assert list(rank.evaluate({"loss": column([*values, 3 * values[-1]])}))
    tests = [test for _, test in rank.tests("LossSpike")]
    assert len(tests) > 2
    assert all(test.value > test.needed for test in tests)


def test_a_level_above_the_initial_loss_counts_as_normal_only_once_it_falls() -> None:
    values = falling(500, noise=0.01)
    lost = [*values, *[1e6 * values[0]] * 3000]
    findings = found(LossDiverging(), column(lost))
    assert findings[-1].severity == "critical"
    assert not any(one.over for one in findings)
    (end,) = [one for one in found(LossDiverging(), column([*lost, *[values[-1]] * 40])) if one.over]
    assert (end.accepted, end.at >= 3500) == (False, True)
    learns = [2 * values[0] * 0.9998**step for step in range(3000)]
    begun = found(LossDiverging(), column([*values, *learns, *[1e6 * values[0]] * 500]))
    (end,) = [one for one in begun if one.over]
    assert (end.accepted, 1500 <= end.at < 2500) == (True, True)
    assert begun[-1].severity == "critical"
