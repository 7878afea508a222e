"""Counters continue across workers."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from trackside_daemon.nvml.handle.counter_continuity import CounterContinuity
from trackside_daemon.nvml.reading import GpuReading, Reading

if TYPE_CHECKING:
    from collections.abc import Callable


def reading(times: int, seconds: float) -> Reading:
    return Reading(
        gpus=[GpuReading(0, "GPU-0", {}, [("busy_seconds_total", (), seconds), ("power_watts", (), 400.0)])],
        calls={"nvmlInit": {"success": times}},
        call_seconds={"nvmlInit": seconds},
        rejected={"trackside_gpu_power_watts": times},
        xids={"GPU-0": {79: (times, 1000.0 + seconds)}},
    )


def busy(reading: Reading) -> float:
    return {name: value for name, _, value in reading.gpus[0].values}["busy_seconds_total"]


def test_the_first_worker_counts_for_itself() -> None:
    continued = CounterContinuity()
    continued.worker_replaced()
    assert continued.accept(reading(1, 0.5)) == reading(1, 0.5)
    assert continued.accept(reading(3, 1.5)) == reading(3, 1.5)


def test_each_worker_continues_where_the_last_was_left() -> None:
    continued = CounterContinuity()
    for times in (1, 2, 3):
        continued.worker_replaced()
        continued.accept(reading(1, 0.5))
        total = continued.accept(reading(2, 1.5))
        assert total.calls == {"nvmlInit": {"success": 2 * times}}
        assert total.call_seconds == {"nvmlInit": 1.5 * times}
        assert total.rejected == {"trackside_gpu_power_watts": 2 * times}
        assert total.xids == {"GPU-0": {79: (2 * times, 1001.5)}}
        assert busy(total) == 1.5 * times


def test_counters_of_the_driver_are_unchanged() -> None:
    continued = CounterContinuity()
    for _ in range(2):
        continued.worker_replaced()
        assert ("power_watts", (), 400.0) in continued.accept(reading(1, 0.5)).gpus[0].values


@pytest.mark.parametrize(
    ("read", "counted"),
    [
        ((5e6, 6e6, 17.0, 7e6, 3e6, 2e6, 8e6), (5e6, 6e6, 6e6, 7e6, 7e6, 7e6, 8e6)),
        ((5e6, 9e17, 6e6, 4e17, 1e18, 7e6), (5e6, 5e6, 6e6, 6e6, 6e6, 7e6)),
        ((5e6, 0.0, 1.0, 2.0, 3.0), (5e6, 5e6, 5e6, 2.0, 3.0)),  # a GPU that was reset
        ((0.0, 3e9, 6e9, 9e9), (0.0, 0.0, 0.0, 9e9)),
        ((0.0, 3.0, 900.0), (0.0, 3.0, 900.0)),
    ],
)
def test_a_counter_of_the_driver_believes_no_single_wrong_reading(
    read: tuple[float, ...], counted: tuple[float, ...]
) -> None:
    continued = CounterContinuity()
    totals = []
    for number in read:
        gpu = GpuReading(0, "GPU-0", {}, [("energy_joules_total", (), number), ("power_watts", (), number)])
        values = dict(value[::2] for value in continued.accept(Reading(gpus=[gpu])).gpus[0].values)
        assert values["power_watts"] == number
        totals.append(values["energy_joules_total"])
    assert tuple(totals) == counted


def test_of_a_driver_that_returns_garbage_three_times_in_ten_a_counter_hardly_ever_falls(
    count: Callable[[int, int], int],
) -> None:
    chance, continued = random.Random(1), CounterContinuity()
    readings = count(2000, 100_000)
    totals = []
    for number in range(readings):
        garbage = chance.choice([0.0, chance.random() * 2**32, chance.random() * 2**63, chance.random() * number])
        read = garbage if chance.random() < 0.3 else 300.0 * number
        gpu = GpuReading(0, "GPU-0", {}, [("energy_joules_total", (), read)])
        totals.append(continued.accept(Reading(gpus=[gpu])).gpus[0].values[0][2])
    falls = sum(later < earlier for earlier, later in pairwise(totals))
    assert falls <= readings / 500, "unfiltered, every fourth falls"
    assert totals[-1] <= 300.0 * readings


def test_a_counter_of_an_earlier_worker_only_is_still_reported() -> None:
    continued = CounterContinuity()
    continued.accept(reading(2, 1.0))
    continued.worker_replaced()
    total = continued.accept(Reading(calls={"nvmlInit": {"timeout": 1}}, xids={"GPU-0": {48: (1, 2000.0)}}))
    assert total.calls == {"nvmlInit": {"success": 2, "timeout": 1}}
    assert total.rejected == {"trackside_gpu_power_watts": 2}
    assert total.xids == {"GPU-0": {79: (2, 1001.0), 48: (1, 2000.0)}}


def test_the_counter_of_a_gpu_that_one_worker_missed_continues_in_the_next() -> None:
    continued = CounterContinuity()
    continued.accept(reading(1, 7.0))
    continued.worker_replaced()
    continued.accept(Reading())
    continued.worker_replaced()
    assert busy(continued.accept(reading(1, 1.0))) == 8.0


def test_a_worker_without_counts_leaves_the_totals() -> None:
    continued = CounterContinuity()
    continued.accept(reading(1, 7.0))
    continued.worker_replaced()
    continued.worker_replaced()
    assert continued.accept(Reading()).call_seconds == {"nvmlInit": 7.0}
