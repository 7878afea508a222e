"""Choice of the steps to time: every step where that is cheap, otherwise a random sample that represents all."""

from __future__ import annotations

import random

import pytest

from trackside.pytorch import overhead_budget as sampling_module
from trackside.pytorch.overhead_budget import TIMES_MEASURED, StepSampler

SHARE, COST = 0.001, 25e-6 * TIMES_MEASURED


class Clock:
    """A clock that only advances when a test sets it."""

    now = 1.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(sampling_module, "monotonic", lambda: clock.now)
    return clock


def timed(clock: Clock, seconds: float, steps: int, marks: int = 6, later: float = 0.0) -> dict[int, int]:
    """Return the timed steps among *steps* of *seconds* each, and of *later* from the middle on, with what each represents."""
    sampler, drawn = StepSampler(SHARE), {}
    for step in range(1, steps + 1):
        clock.now += later if later and step > steps // 2 else seconds
        if sampler.is_sampled:
            sampler.spend(marks * 25_000)
            drawn[step] = sampler.weight
        if step >= sampler.next_step:
            sampler.step_finished(step)
    return drawn


def test_each_step_is_timed_where_that_takes_a_thousandth_of_it(clock: Clock) -> None:
    assert timed(clock, 0.2, 100) == dict.fromkeys(range(1, 101), 1)


@pytest.mark.parametrize(("seconds", "marks"), [(0.1, 6), (0.01, 6), (0.01, 60), (0.001, 6)])
def test_of_shorter_ones_so_many_are_that_it_takes_that_share_and_they_stand_for_all(
    clock: Clock, seconds: float, marks: int
) -> None:
    drawn = timed(clock, seconds, 40_000, marks)
    assert len(drawn) * marks * COST <= 1.2 * SHARE * seconds * 40_000
    assert len(drawn) * marks * COST >= 0.4 * SHARE * seconds * 40_000
    assert sum(drawn.values()) == max(drawn)
    gaps = list(drawn.values())[10:]
    assert len(set(gaps)) > 2  # no rhythm


def test_a_short_training_has_some_of_its_steps_timed_whatever_that_costs(clock: Clock) -> None:
    assert len(timed(clock, 0.001, 40, 60)) >= 5


def test_steps_that_become_a_hundred_times_as_long_are_soon_timed_again(clock: Clock) -> None:
    drawn = timed(clock, 0.001, 8_000, 60, later=0.1)
    assert min(step for step in drawn if step > 4_000) <= 4_200
    assert sum(4_000 < step <= 4_400 for step in drawn) >= 5
    assert sum(drawn.values()) == max(drawn)


def test_the_training_s_own_chance_is_left_alone(clock: Clock) -> None:
    random.seed(4711)
    wanted = random.random()
    random.seed(4711)
    timed(clock, 0.01, 100)
    assert random.random() == wanted
