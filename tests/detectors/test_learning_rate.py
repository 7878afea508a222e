"""Implausible learning rates are findings; warm-ups, decays and restarts of a schedule are not."""

from __future__ import annotations

import math

import pytest
from detector_feed import alarms, feed, same_in_parts_and_beforehand
from hypothesis import given, settings
from hypothesis import strategies as st

from trackside_daemon.detectors.base import Context
from trackside_daemon.detectors.learning_rate import LearningRate
from trackside_daemon.detectors.settings import DetectorThresholds


def cosine(count: int, *, most: float = 1e-3, least: float = 0.0) -> list[float]:
    return [least + (most - least) * (1 + math.cos(math.pi * index / (count - 1))) / 2 for index in range(count)]


def warm(count: int, *, most: float = 1e-3) -> list[float]:
    return [most * index / count for index in range(count)]


@pytest.mark.parametrize(
    "rates",
    [
        [*warm(100), *cosine(1000)],
        [*cosine(500, least=1e-7), *cosine(500, least=1e-7)],
        [1e-8, 1e-8, 1e-3, *cosine(500)],
        [*([1e-3] * 500), *([1e-4] * 500), *([1e-5] * 500), *([1e-3] * 10)],
        [0.0, *([3e-4] * 500), 0.0, 0.0],
        [1.0] * 100,
    ],
    ids=["warm-up and decay", "restarts", "starts at once", "steps", "ends at zero", "one"],
)
def test_schedules_are_not_reported(rates: list[float]) -> None:
    assert not feed(LearningRate(), rates)


@pytest.mark.parametrize(
    ("rate", "words"),
    [
        (-1e-3, "a negative rate raises the loss"),
        (math.nan, "nan at step 200"),
        (math.inf, "inf at step 200"),
        (30.0, "above 10"),
    ],
)
def test_a_rate_out_of_range_is_reported_once_and_when_it_is_right_again(rate: float, words: str) -> None:
    fed = feed(LearningRate(), [*([1e-3] * 200), *([rate] * 5), *([1e-3] * 10)])
    assert [(finding.at, finding.over) for finding in fed] == [(200, False), (205, True)]
    assert (fed[0].alert, fed[0].severity) == ("LearningRateOutOfRange", "warning")
    assert words in fed[0].text


def test_a_great_rate_from_the_start_may_be_intended() -> None:
    (great,) = feed(LearningRate(), [20.0] * 50)
    assert (great.at, great.severity) == (0, "info")


def test_the_most_can_be_set() -> None:
    assert not feed(LearningRate(DetectorThresholds(learning_rate_most=100.0)), [30.0] * 50)


def test_a_jump_far_above_all_before_is_reported() -> None:
    fed = feed(LearningRate(), [*([1e-4] * 200), *([5e-2] * 50)])
    assert [(finding.at, finding.over) for finding in fed] == [(200, False), (201, True)]
    assert "rose to 0.05 at step 200, 500 times the 0.0001" in fed[0].text


@pytest.mark.parametrize("times", [10, 10.1, 100])
@pytest.mark.parametrize(
    "rates", [[1e-3] * 300, [0.3] * 300, cosine(300), warm(300)], ids=["level", "0.3", "decay", "warm-up"]
)
def test_ten_times_the_rate_from_one_step_to_the_next_is_reported(rates: list[float], times: float) -> None:
    fed = feed(LearningRate(), [*rates[:100], *(times * rate for rate in rates[100:120])])
    assert [finding.at for finding in fed if not finding.over][:1] == [100]
    assert fed[0].severity == "warning"


def test_a_rate_that_is_logged_rarely_has_no_warm_up_after_a_hundred_steps() -> None:
    finding, *_ = feed(LearningRate(), [1e-3] * 4 + [1e-2] * 4, steps=range(0, 400, 50))
    assert (finding.at, finding.severity) == (4, "warning")
    assert not feed(LearningRate(), [1e-3] * 4 + [1e-2] * 4)


def test_a_rate_that_stays_at_zero_is_reported_after_a_hundred_steps() -> None:
    fed = feed(LearningRate(), [*([1e-4] * 200), *([0.0] * 300), *([1e-4] * 5)])
    assert [(finding.at, finding.over) for finding in fed] == [(300, False), (500, True)]
    assert "is logged as zero from step 200 to step 300: nothing is learned, unless the log rounds it" in fed[0].text


@pytest.mark.parametrize(
    "rates",
    [[0.0] * 200 + [1e-3] * 5, [20.0] * 50 + [5.0] * 5],
    ids=["zero", "great by a schedule"],
)
def test_a_rate_that_may_be_right_is_reported_once_in_an_attempt(rates: list[float]) -> None:
    assert len(alarms(feed(LearningRate(), rates * 10))) == 1


def test_a_zero_that_is_logged_seldom_is_a_schedules_end() -> None:
    assert not alarms(feed(LearningRate(), [0.0, 1e-3, 1e-3, 0.0], steps=[0, 500, 1000, 1500]))


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(1, 120), st.sampled_from([0.0, 1e-4, 1.0, 20.0, -1.0, math.nan])), max_size=8),
    st.integers(1, 60),
)
def test_the_findings_are_the_same_however_samples_are_fed(parts: list[tuple[int, float]], size: int) -> None:
    values = [level for count, level in parts for _ in range(count)]
    same_in_parts_and_beforehand(LearningRate, values, size)


def test_a_rate_that_was_never_more_than_nothing_is_reported() -> None:
    (found,) = feed(LearningRate(), [1e-8] * 300)
    assert (found.at, found.severity) == (100, "warning")
    assert "is logged as 1e-08 from step 0 to step 100: nothing is learned" in found.text
    assert not feed(LearningRate(), [*([1e-3] * 100), *([1e-8] * 300)])


def of_steps(total: int) -> Context:
    context = Context()
    context.total_steps = total
    return context


def test_a_rate_that_falls_too_low_in_mid_run_is_reported_until_it_rises() -> None:
    rates = [*([1e-4] * 400), *([1e-9] * 1600), *([1e-4] * 5)]
    fed = feed(LearningRate(), rates, context=of_steps(3000))
    assert [(finding.at, finding.severity, finding.over) for finding in fed] == [
        (500, "warning", False),
        (2000, "warning", True),
    ]
    assert "1e-08 or less since step 400, 1e-09 at step 500, and 2,500 of 3,000 steps remain" in fed[0].text
    assert alarms(feed(LearningRate(), rates)) == [1400]
    assert not feed(LearningRate(DetectorThresholds(learning_rate_least=1e-10)), rates, context=of_steps(3000))


@pytest.mark.parametrize("total", [2000, None])
@pytest.mark.parametrize(
    "rates",
    [
        [*warm(200), *cosine(1600, least=1e-9), *([1e-9] * 200)],
        [rate for _ in range(5) for rate in cosine(400)],
        [*warm(1900, most=5e-9), *([1e-3] * 100)],
    ],
    ids=["rests at the end", "restarts", "warm-up"],
)
def test_a_rate_that_is_low_at_the_end_of_a_schedule_is_not_reported(rates: list[float], total: int | None) -> None:
    context = of_steps(total) if total else Context()
    assert not [finding for finding in feed(LearningRate(), rates, context=context) if "or less" in finding.text]
