"""Slow steps are findings, except those that a schedule explains."""

from __future__ import annotations

import random

import pytest
from detector_feed import alarms, feed, same_in_parts_and_beforehand
from hypothesis import given, settings
from hypothesis import strategies as st

from trackside_daemon.detectors.base import Context
from trackside_daemon.detectors.slow_step import CHANCE, KEPT, Schedule, SlowStep


def steady(count: int, *, noise: float = 0.02, seed: int = 1) -> list[float]:
    rng = random.Random(seed)
    return [0.3 * (1 + rng.gauss(0, noise)) for _ in range(count)]


def paused(count: int, at: dict[int, float], **made: float) -> list[float]:
    values = steady(count, **made)  # type: ignore[arg-type]
    for index, times in at.items():
        values[index] *= times
    return values


def test_steady_steps_are_not_reported() -> None:
    assert not feed(SlowStep(), steady(5000))


def test_a_slow_step_is_reported_at_its_sample_with_what_it_cost() -> None:
    fed = feed(SlowStep(), paused(300, {217: 4.0}))
    assert alarms(fed) == [217]
    assert (fed[0].alert, fed[0].severity) == ("SlowStep", "info")
    assert "step 217 took 1." in fed[0].text
    assert "times the 300 ms" in fed[0].text
    assert " ms lost" in fed[0].text


@pytest.mark.parametrize(("times", "severity"), [(190.0, "info"), (220.0, "warning")])
def test_what_costs_a_minute_is_a_warning(times: float, severity: str) -> None:
    fed = feed(SlowStep(), paused(300, {217: times}))
    assert [finding.severity for finding in fed if not finding.over] == [severity]


def test_it_is_over_when_steps_are_as_before() -> None:
    fed = feed(SlowStep(), paused(300, {217: 4.0}))
    assert [(finding.at, finding.over) for finding in fed] == [(217, False), (237, True)]
    assert "again at step 237" in fed[1].text


def test_slow_steps_that_follow_each_other_are_reported_once() -> None:
    assert alarms(feed(SlowStep(), paused(300, dict.fromkeys(range(200, 210), 4.0)))) == [200]


def test_the_first_steps_are_never_reported() -> None:
    assert not feed(SlowStep(), paused(300, {0: 100.0, 1: 50.0, 2: 10.0, 7: 5.0}))


def test_rising_noise_raises_the_threshold_of_a_finding() -> None:
    rng = random.Random(3)
    values = [0.3 * (1 + abs(rng.gauss(0, 0.02 + 0.3 * index / 3000))) for index in range(3000)]
    assert not feed(SlowStep(), values)


@pytest.mark.parametrize("gap", [50, 125, 190])
def test_a_pause_that_counts_from_the_first_step_is_reported_once(gap: int) -> None:
    values = paused(3001, dict.fromkeys(range(gap, 3001, gap), 6.0))
    assert alarms(feed(SlowStep(), values)) == [gap]


def test_a_pause_that_counts_from_elsewhere_is_reported_twice() -> None:
    assert alarms(feed(SlowStep(), paused(3001, dict.fromkeys(range(177, 3001, 250), 6.0)))) == [177, 427]


def test_pauses_that_come_a_step_early_or_late_are_scheduled_too() -> None:
    rng = random.Random(2)
    at = {index + rng.choice([-1, 0, 1]): 6.0 for index in range(200, 4000, 200)}
    assert len(alarms(feed(SlowStep(), paused(4001, at)))) <= 2


def test_two_schedules_are_learnt_at_once() -> None:
    at = dict.fromkeys(range(125, 6000, 125), 4.0) | dict.fromkeys(range(1000, 6000, 1000), 30.0)
    assert alarms(feed(SlowStep(), paused(6000, at))) == [125, 1000]


def test_schedules_are_of_steps_where_not_every_step_is_logged() -> None:
    steps = list(range(0, 40000, 20))
    pauses = {(step + 19) // 20: 5.0 for step in range(610, 40000, 610)}
    assert len(alarms(feed(SlowStep(), paused(2000, pauses), steps=steps))) <= 2


def test_a_pause_by_the_clock_is_learnt() -> None:
    rng = random.Random(5)
    values, times, now, due = [], [], 0.0, 600.0
    for _ in range(20000):
        seconds = 0.3 * (1 + 0.3 * abs(rng.gauss(0, 1)))
        if now > due:
            seconds, due = seconds + 5.0, now + 600.0
        now += seconds
        values.append(seconds)
        times.append(now)
    reported = alarms(feed(SlowStep(), values, times=times))
    assert sum(value > 4 for value in values) > 9
    assert len(reported) <= 3


def test_a_pause_much_longer_than_its_schedule_is_reported() -> None:
    at = dict.fromkeys(range(100, 2000, 100), 4.0) | {1500: 40.0}
    assert alarms(feed(SlowStep(), paused(2000, at))) == [100, 1500]


def test_a_slow_step_between_pauses_is_reported() -> None:
    at = dict.fromkeys(range(100, 2000, 100), 6.0) | {1337: 6.0}
    assert alarms(feed(SlowStep(), paused(2000, at))) == [100, 1337]


def test_slow_steps_at_random_are_not_mistaken_for_a_schedule() -> None:
    rng = random.Random(8)
    at = dict.fromkeys(rng.sample(range(100, 10000), 60), 3.0)
    reported = alarms(feed(SlowStep(), paused(10000, at)))
    assert len(reported) > 50


def test_steps_that_are_slow_so_often_are_how_the_steps_are() -> None:
    rng = random.Random(9)
    values = [0.3 * (3 if rng.random() < 0.15 else 1) for _ in range(20000)]
    assert not [index for index in alarms(feed(SlowStep(), values)) if index > 3000]


def test_slow_steps_of_a_noisy_host_are_counted_though_not_reported() -> None:
    rng = random.Random(9)
    values = [0.3 * (3 if rng.random() < 0.15 else 1) for _ in range(20000)]
    context = Context()
    reported = alarms(feed(SlowStep(), values, context=context))
    assert len(reported) < 200
    assert context.slow.count > 1000


def test_a_step_of_a_long_run_must_lose_a_thousandth_of_its_time() -> None:
    values = [10 * seconds for seconds in paused(6000, {101: 4.0, 5001: 4.0})]
    assert alarms(feed(SlowStep(), values)) == [101, 5001]
    assert alarms(feed(SlowStep(), values, context=Context(lost=1.0))) == [101]


def test_a_schedule_outlives_a_return_to_an_earlier_step() -> None:
    steps = [*range(1050), *range(800, 3000)]
    values = steady(len(steps))
    for index, step in enumerate(steps):
        if step and step % 250 == 0:
            values[index] *= 5
    assert alarms(feed(SlowStep(), values, steps=steps)) == [250]


def test_what_lasts_is_over_when_it_is_usual() -> None:
    values = [0.3 if index < 500 else 0.9 for index in range(2000)]
    fed = feed(SlowStep(), values)
    assert [(finding.at, finding.over) for finding in fed] == [(500, False), (1500, True)]
    assert "new normal" in fed[1].text


@pytest.mark.parametrize("phase", ["eval", "checkpoint"])
def test_what_takes_long_in_a_pause_is_no_step(phase: str) -> None:
    detector, context = SlowStep(), Context()
    assert not feed(detector, steady(100), context=context)
    context.phase = phase
    assert not feed(detector, [9.0], context=context)


def test_impossible_times_are_passed_over() -> None:
    values = paused(300, {217: 4.0})
    values[100:103] = [float("nan"), float("inf"), -1.0]
    assert alarms(feed(SlowStep(), values)) == [217]


@settings(max_examples=40)
@given(
    st.lists(st.sampled_from([0.3, 0.31, 0.29, 0.305, 1.2, 5.0, float("nan")]), min_size=40, max_size=200),
    st.integers(1, 60),
)
def test_the_findings_are_the_same_however_samples_are_fed(values: list[float], parts: int) -> None:
    same_in_parts_and_beforehand(SlowStep, values, parts)


def test_a_schedule_stores_no_more_than_it_must() -> None:
    schedule = Schedule(0, chance=CHANCE)
    for place in range(10 * KEPT):
        schedule.note(place, 1.0)
    assert len(schedule._pauses) == KEPT


def test_a_step_with_a_negligible_cost_is_not_reported() -> None:
    values = [0.001 * value for value in paused(300, {217: 100.0})]
    assert not feed(SlowStep(), values, context=Context(lost=0.05))
    assert alarms(feed(SlowStep(), values, context=Context(lost=0.02))) == [217]


def _severities(at: dict[int, float], count: int = 3000) -> list[str]:
    return [finding.severity for finding in feed(SlowStep(), paused(count, at)) if not finding.over]


def test_a_fourth_step_as_slow_of_late_is_information() -> None:
    three = dict.fromkeys([200, 333, 1021], 280.0)
    assert _severities({**three, 1613: 310.0}) == ["warning"] * 3 + ["info"]
    assert _severities({**three, 1613: 2000.0}) == ["warning"] * 4
    assert _severities({**three, 11613: 310.0}, 12000) == ["warning"] * 4


def test_a_machine_that_slept_is_reported_in_hours() -> None:
    fed = feed(SlowStep(), paused(300, {217: 96001.8}))
    assert "8 h 2 min, more than 1,000 times the 300 ms of the steps before: 8 h 2 min lost" in fed[0].text
