"""Durations of steps: time in evaluation and checkpoints is subtracted from the steps that contained it."""

from __future__ import annotations

import pytest

from trackside_daemon.detectors.step_durations import StepDurations


def took(paused: float, *spans: float, steps: tuple[int, ...] = ()) -> list[float]:
    """Return the durations of steps whose pushes were *spans* seconds apart, *paused* seconds of which were pauses."""
    durations = StepDurations()
    durations.add([0], [100.0])
    times = [100.0 + sum(spans[: count + 1]) for count in range(len(spans))]
    durations.paused(paused)
    return list(durations.add(steps or range(1, len(spans) + 1), times).values)


def test_a_pause_is_subtracted_from_the_step_that_had_it() -> None:
    assert took(1.5, 0.03, 1.53, 0.03) == pytest.approx([0.03] * 3)


def test_another_step_that_is_slow_stays_so() -> None:
    assert took(1.5, 1.0, 1.53, 0.03) == pytest.approx([1.0, 0.03, 0.03])


def test_pauses_of_several_steps_are_subtracted_from_them_all() -> None:
    assert took(3.0, 0.03, 1.53, 1.53, 0.03) == pytest.approx([0.03] * 4)
    assert took(4.6, 0.03, 1.53, 3.13, 0.03) == pytest.approx([0.03] * 4)


def test_of_several_steps_between_two_pushes_each_has_its_share() -> None:
    assert took(1.5, 0.3, 1.8, steps=(10, 20)) == pytest.approx([0.03, 0.03])


def test_no_step_is_shorter_than_nothing_and_nothing_is_left_for_the_next() -> None:
    durations = StepDurations()
    durations.add([0], [100.0])
    durations.paused(5.0)
    assert list(durations.add([1, 2], [101.0, 102.0]).values) == [0.0, 0.0]
    assert list(durations.add([3], [105.0]).values) == [3.0]


def test_what_was_paused_waits_for_a_step_that_ends() -> None:
    durations = StepDurations()
    durations.add([0], [100.0])
    durations.paused(5.0)
    assert list(durations.add([0], [103.0]).values) == []
    assert list(durations.add([1], [106.0]).values) == [1.0]
