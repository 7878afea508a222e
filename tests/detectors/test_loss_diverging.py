"""A loss whose level rises and stays."""

from __future__ import annotations

import pytest
from detectors.losses import alarms, column, ends, falling, found

from trackside_daemon.detectors.base import Context
from trackside_daemon.detectors.loss_diverging import LossDiverging


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("noise", [0.0, 0.01, 0.1])
def test_a_healthy_run_is_quiet(seed: int, noise: float) -> None:
    assert not found(LossDiverging(), column(falling(5000, noise=noise, seed=seed)))


def test_a_level_that_rises_at_once_is_found_within_its_samples() -> None:
    values = falling(600)
    values[300:] = [value * 1.3 for value in values[300:]]
    findings = found(LossDiverging(), column(values))
    assert 308 <= alarms(findings, "LossDiverging")[0] <= 316
    assert findings[0].severity == "warning"
    assert "loss has risen to" in findings[0].text


def test_a_loss_that_rises_bit_by_bit_is_found_and_gets_critical() -> None:
    values = falling(400, noise=0.01)
    values += [values[-1] * 1.004**i for i in range(400)]
    findings = found(LossDiverging(), column(values))
    firing = [finding for finding in findings if not finding.over]
    assert 400 < firing[0].at < 460
    assert firing[0].severity == "warning"
    assert firing[-1].severity == "critical"


def test_a_spike_that_decays_is_no_level() -> None:
    values = falling(600)
    values[300:] = [value * (1 + 3 * 0.85**i) for i, value in enumerate(values[300:])]
    assert not found(LossDiverging(), column(values))


def test_it_is_over_when_the_loss_is_back() -> None:
    values = falling(900)
    values[300:500] = [value * 2 for value in values[300:500]]
    findings = found(LossDiverging(), column(values))
    assert 500 <= ends(findings, "LossDiverging")[0] <= 516
    assert alarms(findings, "LossDiverging")[-1] < 516


def test_a_level_that_stays_is_accepted() -> None:
    values = falling(600)
    values += [value * 1.5 for value in [values[-1]] * 1400]
    findings = found(LossDiverging(), column(values))
    assert findings[-1].over
    assert "which is now its accepted level" in findings[-1].text


def test_a_raised_learning_rate_is_named() -> None:
    values = falling(600)
    values[300:] = [value * 1.6 for value in values[300:]]
    context = Context()
    context.rates_raised = [299]
    assert "raised at step 299" in found(LossDiverging(), column(values), context)[0].text


def test_a_restart_forgets_the_lowest() -> None:
    values = falling(400) + falling(400)[100:]
    assert not found(LossDiverging(), column(values, [*range(400), *range(100, 400)]))
