"""Steps that have become slower for good are a finding, which is over when they are as fast as before."""

from __future__ import annotations

import random

import pytest
from detector_feed import alarms, feed, same_in_parts_and_beforehand
from hypothesis import given, settings
from hypothesis import strategies as st

from trackside_daemon.detectors.base import Column, Context
from trackside_daemon.detectors.throughput import Throughput


def levels(*parts: tuple[int, float], noise: float = 0.01, seed: int = 1) -> list[float]:
    rng = random.Random(seed)
    return [level * (1 + rng.gauss(0, noise)) for count, level in parts for _ in range(count)]


def test_a_level_that_rises_and_stays_is_reported_within_fifty_samples() -> None:
    fed = feed(Throughput(), levels((400, 8.0), (200, 9.6)))
    assert len(fed) == 1
    assert 430 <= fed[0].at < 450
    assert (fed[0].alert, fed[0].severity) == ("ThroughputRegression", "warning")
    assert "since about step 400" in fed[0].text
    assert "% of the throughput is lost" in fed[0].text


def test_it_is_over_when_steps_are_as_fast_as_before() -> None:
    fed = feed(Throughput(), levels((400, 8.0), (200, 9.6), (100, 8.0)))
    assert [finding.over for finding in fed] == [False, True]
    assert 610 <= fed[1].at < 630


def test_a_level_that_stays_is_the_usual_in_the_end() -> None:
    fed = feed(Throughput(), levels((400, 8.0), (3000, 9.6), (200, 11.6)))
    assert [finding.over for finding in fed] == [False, True, False]
    assert "new normal" in fed[1].text


@pytest.mark.parametrize("seed", range(5))
def test_noise_is_not_reported(seed: int) -> None:
    assert not feed(Throughput(), levels((5000, 8.0), noise=0.2, seed=seed))


def test_a_short_slowness_is_not_reported() -> None:
    assert not feed(Throughput(), levels((400, 8.0), (25, 12.0), (400, 8.0)))


def test_pauses_are_not_reported() -> None:
    values = levels((3000, 8.0))
    values[::10] = [80.0] * 300
    assert not feed(Throughput(), values)


def test_faster_steps_are_not_reported() -> None:
    assert not feed(Throughput(), levels((400, 8.0), (400, 5.0)))


def test_a_slow_creep_is_not_reported() -> None:
    assert not feed(Throughput(), [8.0 * (1 + index / 50000) for index in range(10000)])


def test_it_needs_some_samples_to_learn_the_usual() -> None:
    assert not alarms(feed(Throughput(), [*([1.0] * 30), *([8.0] * 500)]))


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.integers(1, 60), st.sampled_from([8.0, 8.1, 10.0, float("nan")])), max_size=12),
    st.integers(1, 60),
)
def test_the_findings_are_the_same_however_samples_are_fed(parts: list[tuple[int, float]], size: int) -> None:
    values = [level for count, level in parts for _ in range(count)]
    same_in_parts_and_beforehand(Throughput, values, size)


def test_slower_steps_are_a_finding_when_they_have_lost_enough_and_a_warning_at_more() -> None:
    context, steps = Context(lost=1.0), range(1200)
    seconds = [(0.02 if step < 200 else 0.03) + step % 7 / 1e5 for step in steps]
    found = [*Throughput().evaluate(Column(steps, steps, seconds), context)]
    assert [(one.severity, one.at, one.over) for one in found] == [("info", 259, False)]
    slow = [10 * one for one in seconds]
    found = [*Throughput().evaluate(Column(steps, steps, slow), context)]
    assert [(one.severity, one.at) for one in found if not one.over] == [("info", 239), ("warning", 799)]


def test_a_training_of_two_seconds_is_measured_by_its_own_time() -> None:
    """The slower steps lose half a second in all."""
    steps = range(1000)
    seconds = [(0.001 if step < 500 else 0.002) + step % 7 / 1e6 for step in steps]
    found = [*Throughput().evaluate(Column(steps, steps, seconds), Context(lost=1.0))]
    assert [(one.severity, one.over) for one in found] == [("info", False)]
    short = [one if 500 <= step < 550 else 0.001 for step, one in enumerate(seconds)]
    assert not [*Throughput().evaluate(Column(steps, steps, short), Context(lost=1.0))]


def test_a_machine_that_grows_warm_within_an_hour_is_not_reported() -> None:
    """Like a laptop: a third slower after thousands of steps of half a second, and so for good."""
    noise = random.Random(3)
    assert not feed(Throughput(), [0.5 * min(1.33, 1 + index / 9000) * noise.gauss(1, 0.01) for index in range(8000)])
