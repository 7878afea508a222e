"""Findings about a faulty GPU."""

from __future__ import annotations

import pytest

from trackside_daemon.collectors.gpu.gpu import GpuFault, faults
from trackside_daemon.nvml.reading import GpuReading
from trackside_daemon.nvml.simulation.simulate import simulate


def sick(*values: tuple[str, tuple[str, ...], float]) -> GpuReading:
    return GpuReading(0, "GPU-0", {}, [("up", (), 1.0), *values])


@pytest.mark.parametrize("profile", ["h100", "a100", "l40s"])
def test_a_healthy_gpu_has_none(profile: str) -> None:
    (gpu,) = simulate(1, 5000.0, profile).gpus
    assert faults(gpu, {}) == []


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([("recovery_action", (), 1.0)], "trackside pause-gpu"),
        ([("row_remap_pending", (), 1.0)], "next reset"),
        ([("row_remap_failed", (), 1.0)], "replace the GPU"),
        ([("retired_pages_pending", (), 1.0)], "is retired"),
        ([("sram_threshold_exceeded", (), 1.0)], "NVIDIA replaces"),
        ([("ecc_volatile_errors_total", ("uncorrected",), 3.0)], "3 uncorrected ECC errors"),
        ([("fabric_healthy", (), 0.0)], "fabric"),
        ([("nvlink_links", (), 18.0), ("nvlink_links_up", (), 17.0)], "17 of 18 NVLinks"),
    ],
)
def test_what_does_not_pass_by_itself_is_grave(values: list[tuple[str, tuple[str, ...], float]], message: str) -> None:
    (one,) = faults(sick(*values), {})
    assert message in one.what
    assert one.grave


def test_what_is_as_it_should_be_is_nothing() -> None:
    values = [("recovery_action", (), 0.0), ("fabric_healthy", (), 1.0), ("nvlink_links", (), 12.0)]
    assert faults(sick(*values, ("nvlink_links_up", (), 0.0)), {13: (9, 5.0)}) == []


def test_the_grave_come_before_what_may_pass() -> None:
    slow = [("clock_limit_active", (reason,), 1.0) for reason in ("hw_thermal", "hw_slowdown", "sw_power_cap")]
    assert faults(sick(*slow), {79: (1, 5.0)}) == [
        GpuFault("Xid 79, 1 since the daemon started"),
        GpuFault("its clocks are reduced by hw_slowdown, hw_thermal", grave=False),
    ]
