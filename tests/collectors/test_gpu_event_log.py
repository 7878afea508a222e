"""GPU events in the kernel log."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from trackside_daemon.collectors.gpu.gpu import GpuEventLog
from trackside_daemon.nvml.reading import DOWN, GpuReading, Reading

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

FOUND = "reads 2 x NVIDIA H100, driver 580"


def gpu(index: int, *, up: bool = True, source: str = "nvml") -> GpuReading:
    values = [("up", (), 1.0)] if up else DOWN
    return GpuReading(index, f"GPU-{index}", {"name": "NVIDIA H100", "source": source}, values)  # type: ignore[arg-type]


def logged(caplog: pytest.LogCaptureFixture, *readings: Sequence[GpuReading]) -> list[str]:
    event_log = GpuEventLog()
    with caplog.at_level(logging.INFO, "trackside"):
        for gpus in readings:
            event_log.log_changes(gpus, Reading(list(gpus), {"driver_version": "580"}))
    return [record.message for record in caplog.records]


def test_a_found_gpu_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    assert logged(caplog, [gpu(0), gpu(1)], [gpu(0), gpu(1)]) == [FOUND]


def test_simulated_gpus_are_not_mistaken_for_real_ones(caplog: pytest.LogCaptureFixture) -> None:
    assert logged(caplog, [gpu(0, source="simulated")]) == ["simulates 1 x NVIDIA H100, and reads no real GPU"]


def test_a_loss_and_a_return_are_logged_once_each(caplog: pytest.LogCaptureFixture) -> None:
    lost = [gpu(0), gpu(1, up=False)]
    assert logged(caplog, [gpu(0), gpu(1)], lost, lost, [gpu(0), gpu(1)])[1:] == [
        "GPU 1 (NVIDIA H100, GPU-1) is lost: it does not answer; see dmesg for NVRM and Xid",
        "GPU 1 (NVIDIA H100, GPU-1) answers again",
    ]


def test_a_gpu_that_was_lost_from_the_start_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert "GPU 1 (NVIDIA H100, GPU-1) is lost" in logged(caplog, [gpu(0), gpu(1, up=False)])[1]


def test_a_gpu_that_comes_later_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert logged(caplog, [gpu(0)], [gpu(0), gpu(1)])[1:] == ["GPU 1 (NVIDIA H100, GPU-1) answers"]


def test_an_xid_is_logged_when_its_count_grows(caplog: pytest.LogCaptureFixture) -> None:
    event_log = GpuEventLog()
    with caplog.at_level(logging.WARNING, "trackside"):
        for times in (1, 1, 3):
            event_log.log_changes([gpu(0)], Reading([gpu(0)], xids={"GPU-0": {79: (times, 5.0)}}))
    assert [record.message for record in caplog.records] == [
        "GPU 0 (NVIDIA H100, GPU-0): Xid 79, 1 since this daemon started",
        "GPU 0 (NVIDIA H100, GPU-0): Xid 79, 3 since this daemon started",
    ]
