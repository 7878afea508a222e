"""Simulated GPUs are plausible, and the same whoever asks."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from trackside_daemon.nvml.families import FAMILIES
from trackside_daemon.nvml.simulated import simulate

if TYPE_CHECKING:
    from trackside_daemon.nvml.reading import GpuReading


def values(gpu: GpuReading) -> dict[str, float]:
    return {family: value for family, _, value in gpu.values}


def test_the_same_moment_gives_the_same_reading() -> None:
    assert simulate(8, 1234.5) == simulate(8, 1234.5)


def test_two_gpus_differ() -> None:
    first, second = simulate(2, 1000.0).gpus
    assert (first.uuid, second.uuid) == (
        "GPU-00000000-0000-0000-0000-000000000000",
        "GPU-00000000-0000-0000-0000-000000000001",
    )
    assert values(first)["utilization_ratio"] != values(second)["utilization_ratio"]


@pytest.mark.parametrize("now", [0.0, 17.3, 3600.0, 1e6])
def test_every_value_is_one_that_a_card_could_have(now: float) -> None:
    for gpu in simulate(8, now).gpus:
        for family, value in values(gpu).items():
            assert FAMILIES[family].low <= value <= FAMILIES[family].high, family
        parts = [values(gpu)[f"memory_{part}_bytes"] for part in ("used", "free", "reserved")]
        assert sum(parts) == values(gpu)["memory_bytes"]


def test_energy_grows_as_fast_as_power_says() -> None:
    before, middle, after = (values(simulate(1, now).gpus[0]) for now in (99.5, 100.0, 100.5))
    assert after["energy_joules_total"] - before["energy_joules_total"] == pytest.approx(
        middle["power_watts"], rel=0.01
    )


def test_values_move_smoothly_from_second_to_second() -> None:
    readings = [values(simulate(1, float(second)).gpus[0]) for second in range(200)]
    for before, after in itertools.pairwise(readings):
        assert abs(after["utilization_ratio"] - before["utilization_ratio"]) < 0.06
        assert abs(after["temperature_celsius"] - before["temperature_celsius"]) < 3
