"""Gradients that explode or vanish are findings; a norm that jumps once, or is clipped, is not."""

from __future__ import annotations

import math
import random

import pytest
from detector_feed import alarms, feed, same_in_parts_and_beforehand
from hypothesis import given, settings
from hypothesis import strategies as st

from trackside_daemon.detectors.base import Context
from trackside_daemon.detectors.gradient import Gradient
from trackside_daemon.detectors.settings import DetectorThresholds


def norms(count: int, *, level: float = 1.0, spread: float = 0.15, seed: int = 1) -> list[float]:
    rng = random.Random(seed)
    return [level * math.exp(rng.gauss(0, spread)) for _ in range(count)]


@pytest.mark.parametrize("spread", [0.05, 0.3, 1.0])
def test_noise_is_not_reported(spread: float) -> None:
    assert not feed(Gradient(), norms(5000, spread=spread))


def test_an_explosion_is_information_at_its_second_sample() -> None:
    values = norms(300)
    values[200:210] = [5.0] * 10
    fed = feed(Gradient(), values)
    assert alarms(fed) == [201]
    assert (fed[0].alert, fed[0].severity) == ("GradientExplosion", "info")
    assert "gradient norm 5 at step 201" in fed[0].text
    assert fed[-1].over


def test_a_great_explosion_is_a_warning_and_critical_if_it_lasts() -> None:
    values = norms(300)
    values[200] = 4000.0
    fed = [(one.at, one.severity, one.over) for one in feed(Gradient(), values)]
    assert fed == [(200, "info", False), (220, "info", True)]
    values[200:270] = [4000.0] * 70
    worse = [(one.at, one.severity) for one in feed(Gradient(), values) if not one.over]
    assert worse == [(200, "info"), (215, "warning"), (231, "critical")]
    late = feed(Gradient(DetectorThresholds(critical_after=50)), values, times=range(300))
    assert [one.at for one in late if one.severity == "critical" and not one.over] == [250]


def test_a_norm_as_at_the_start_is_no_explosion() -> None:
    values = [100 * 0.9**i for i in range(100)] + norms(300)
    values[300:] = [60.0] * 100
    assert {one.severity for one in feed(Gradient(), values) if one.at >= 300} == {"info"}


def test_a_norm_that_jumps_once_does_no_harm() -> None:
    values = norms(300)
    values[200] = 6.0
    assert not feed(Gradient(), values)


def test_a_norm_that_clipping_makes_constant_is_not_reported() -> None:
    values = [1.0] * 500
    values[100:120] = [1.01] * 20
    values[300:320] = [0.7] * 20
    assert not feed(Gradient(), values)


def test_a_norm_that_falls_fast_at_first_is_not_reported() -> None:
    rng = random.Random(3)
    values = [(0.5 + 60 * 0.95**index) * math.exp(rng.gauss(0, 0.1)) for index in range(500)]
    assert not feed(Gradient(), values)


def test_norms_that_are_logged_less_often_are_not_compared_with_those_before() -> None:
    steps = [*range(100), *range(100, 50000, 100)]
    values = [*norms(100, level=30.0), *norms(len(steps) - 100, level=0.5)]
    assert not feed(Gradient(), values, steps=steps)


def test_a_norm_that_vanishes_is_reported_and_when_it_is_back() -> None:
    values = [*norms(600), *norms(60, level=1e-4), *norms(100)]
    fed = feed(Gradient(), values)
    vanished = [finding for finding in fed if finding.alert == "GradientVanishing"]
    assert [(finding.at, finding.over) for finding in vanished] == [(619, False), (679, True)]
    assert "since step 600" in vanished[0].text


def test_the_norm_of_a_loss_that_converges_to_nothing_does_not_vanish() -> None:
    fading = [0.97**i for i in range(1000)]
    values = [one * off for one, off in zip(fading, norms(1000), strict=True)]
    context = Context()
    context.losses = dict(enumerate(fading))
    assert not feed(Gradient(), values, context=context)
    assert "GradientVanishing" in {one.alert for one in feed(Gradient(), values)}
    values[400:] = [1e-4 * one for one in values[400:]]
    assert [one.at for one in feed(Gradient(), values, context=context) if not one.over] == [419]


def test_a_norm_that_vanishes_among_others_of_all_sizes() -> None:
    values = norms(600, spread=1.5)
    values[400:] = [1e-4 * one for one in values[400:]]
    assert alarms(feed(Gradient(), values)) == [419]


def test_a_norm_that_rises_for_a_few_samples_still_vanishes() -> None:
    low = norms(40, level=1e-4)
    fed = feed(Gradient(), [*norms(600), *low, *norms(19), *low, *norms(19), *low])
    assert [(finding.at, finding.over) for finding in fed if finding.alert == "GradientVanishing"] == [(619, False)]


def test_a_norm_that_stays_low_is_the_usual_in_the_end() -> None:
    fed = feed(Gradient(), [*norms(600), *norms(3000, level=1e-3)])
    assert [(finding.at, finding.over) for finding in fed[:1]] == [(619, False)]
    assert [finding.over for finding in fed] == [False, True]


def test_one_sample_that_was_not_logged_changes_nothing() -> None:
    steps = [*range(200), *range(210, 310)]
    values = norms(300)
    values[201:206] = [5.0] * 5
    assert alarms(feed(Gradient(), values, steps=steps))[:1] == [202]


def test_a_norm_that_is_nothing_from_the_start_is_reported() -> None:
    (finding,) = feed(Gradient(), [0.0] * 100)
    assert finding.alert == "GradientVanishing"
    assert (
        finding.text == "the gradient norm is 0 at step 19, and has been this low since step 0: the model hardly learns"
    )


def test_a_norm_that_fades_with_the_rate_is_not_reported() -> None:
    values = [norm * 0.998**index for index, norm in enumerate(norms(3000))]
    assert not feed(Gradient(), values)


def test_the_context_receives_the_state_of_the_norm() -> None:
    context = Context()
    feed(Gradient(), [*([2.0] * 50), 8.0], context=context)
    assert context.gradients[50] == pytest.approx(4.0)


def test_what_is_no_number_is_passed_over() -> None:
    values = norms(300)
    values[100:103] = [math.nan, math.inf, -1.0]
    assert not feed(Gradient(), values)


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.sampled_from([1.0, 1.1, 6.0, 400.0, 1e-9, math.nan])), max_size=12),
    st.integers(1, 60),
)
def test_the_findings_are_the_same_however_samples_are_fed(parts: list[tuple[int, float]], size: int) -> None:
    values = [level for count, level in parts for _ in range(count)]
    same_in_parts_and_beforehand(Gradient, values, size)


def test_a_norm_that_is_mostly_zero_is_reported_once_and_measures_nothing() -> None:
    rng = random.Random(5)
    values = [rng.expovariate(100.0) if rng.random() < 0.1 else 0.0 for _ in range(5000)]
    fed = feed(Gradient(), values)
    assert [(finding.alert, finding.over) for finding in fed] == [("GradientVanishing", False)]
    assert fed[0].text.startswith("the gradient norm is 0 at step ")


def test_an_explosion_is_over_where_the_norm_vanishes() -> None:
    fed = feed(Gradient(), [*norms(300), 4000.0, *([0.0] * 100)])
    assert {(finding.alert, finding.at, finding.over) for finding in fed} == {
        ("GradientExplosion", 300, False),
        ("GradientExplosion", 320, True),
        ("GradientVanishing", 320, False),
    }
