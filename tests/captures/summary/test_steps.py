"""Steps of a trace: whole ones, as many as were asked for, and the same ones for several ranks."""

from __future__ import annotations

import pytest
from captures.summary.traces import BASE, Writer

from trackside.limits import PROFILE_STEPS
from trackside_daemon.captures.summary.steps import cut, durations
from trackside_daemon.captures.summary.trace import TraceError, decode


def training(steps: int, *, begin: float = 500.0, first: float = 1000.0) -> Writer:
    """Return a recording whose first step lasts *first* microseconds, and each other one 1000 in front of its optimizer."""
    writer = Writer(begin)
    for index in range(steps):
        writer.call("aten::mm", 1000.0 if index else first)
        writer.optimizer()
    return writer


def edges(writer: Writer, count: int | None, near: float | None = None) -> list[float]:
    return cut(decode(writer.text()), count, near).edges


def test_as_many_marks_as_steps_were_recorded_from_the_end_of_a_step() -> None:
    assert edges(training(3), 3) == [500, 1600, 2700, 3800]


def test_one_more_mark_than_steps_ends_a_step_that_was_cut_off() -> None:
    assert edges(training(4, first=10.0), 3) == [610, 1710, 2810, 3910]


def test_all_whole_steps_count_without_a_number() -> None:
    assert len(edges(training(6), None)) == 6
    assert len(edges(training(PROFILE_STEPS + 5), None)) == PROFILE_STEPS + 1


def test_a_training_that_ends_leaves_fewer_steps() -> None:
    assert edges(training(3), 10) == [1600, 2700, 3800]
    assert edges(training(1), 10) == [500, 1600]


def test_the_steps_are_in_the_middle() -> None:
    assert edges(training(8), 3) == [1600 + 1100 * index for index in range(2, 6)]


def test_operators_after_the_last_optimizer_are_no_step() -> None:
    writer = training(4)
    writer.call("aten::mm", 600.0)
    assert edges(writer, None)[-1] == 500 + 4 * 1100


def test_another_rank_begins_with_the_nearest_step() -> None:
    there = BASE * 1e6 + 500 + 3 * 1100
    assert edges(training(12), 4, there + 200)[0] == 500 + 3 * 1100
    assert edges(training(12), 4, there + 900)[0] == 500 + 4 * 1100
    assert edges(training(12), 4, there + 1e9) == edges(training(12), 12)[-5:]
    assert edges(training(12), 4, there - 1e9) == edges(training(12), None)[:5]


def test_marks_of_a_profiler_with_a_schedule_count_first() -> None:
    writer = training(4)
    for index in range(3):
        writer.add(f"ProfilerStep#{index + 5}", 700.0 + 1000 * index, 1000.0, "user_annotation")
    assert edges(writer, None) == [700, 1700, 2700, 3700]


def test_the_step_of_an_optimizer_inside_another_one_is_no_step() -> None:
    writer = training(3)
    for index in range(3):
        writer.add("Optimizer.step#Adam.step", 1510.0 + 1100 * index, 50.0, "user_annotation")
    assert edges(writer, 3) == [500, 1600, 2700, 3800]


def test_marks_of_other_threads_and_of_the_gpu_are_no_steps() -> None:
    writer = training(3)
    writer.add("Optimizer.step#SGD.step", 900.0, 50.0, "gpu_user_annotation")
    writer.add("Optimizer.step#SGD.step", 2000.0, 50.0, "user_annotation", tid=99)
    assert edges(writer, 3) == [500, 1600, 2700, 3800]


def test_a_recording_without_marks_counts_as_one_step() -> None:
    writer = Writer(100.0)
    writer.call("aten::mm", 50.0)
    writer.call("aten::mm", 70.0)
    steps = cut(decode(writer.text()), 10)
    assert (steps.edges, steps.whole) == ([100, 220], False)


def test_a_recording_without_operators_is_refused() -> None:
    writer = Writer()
    writer.call("hello", 10.0, "user_annotation")
    with pytest.raises(TraceError, match="no operators"):
        edges(writer, 10)


def test_durations_are_seconds() -> None:
    assert durations([0, 1e6, 3e6]) == [1, 2]
