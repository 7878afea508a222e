"""Simulated GPUs, through the collector that reads real ones: their troubles are found, and no others."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest
from alerts.ticking import Machine

from trackside_daemon.collectors.gpu.gpu import GpuCollector
from trackside_daemon.model.metric import Batch
from trackside_daemon.nvml.simulation.simulate import WorkerStart, simulate

if TYPE_CHECKING:
    from trackside_daemon.nvml.handle.handle import Nvml
    from trackside_daemon.nvml.reading import Reading


class Simulated:
    """NVML handle with a simulating worker."""

    def __init__(self, machine: Machine, profile: str, troubles: tuple[str, ...]) -> None:
        self.skipped = 0
        self.patience = 0.0
        self.last: Reading | None = None
        self._machine, self._profile, self.troubles = machine, profile, troubles
        self._start = WorkerStart(machine.now - 1.0, 0.0)

    def read(self, patience: float) -> Reading:
        self.patience = patience
        self.last = simulate(8, self._machine.now, self._profile, self.troubles, self._start)
        return self.last


def fired(seconds: int, profile: str, *troubles: str, every: float = 1.0) -> set[tuple[str, str, str]]:
    """Return the name, severity and GPU index of each alert that fires within *seconds* on 8 GPUs."""
    machine = Machine()
    collector = GpuCollector(cast("Nvml", Simulated(machine, profile, troubles)), timeout=1.0)
    begun = machine.now
    while machine.now < begun + seconds:
        machine.state.update(Batch("gpu", collector.collect(), complete=True, time=machine.now))
        machine.evaluate()
        machine.now += every
    return {(one.alert, one.severity, dict(one.labels)["gpu"]) for one in machine.findings if not one.over}


@pytest.mark.parametrize("profile", ["h100", "a100", "l40s"])
def test_hot(profile: str) -> None:
    assert fired(150, profile, "hot:3") == {("GpuHot", "warning", "3")}


def test_throttled() -> None:
    assert fired(150, "h100", "throttled") == {("GpuThrottled", "warning", "7")}


def test_xid() -> None:
    assert fired(70, "h100", "xid:1") == {("GpuXid", "critical", "1"), ("GpuRowRemap", "warning", "1")}


def test_lost() -> None:
    assert fired(280, "h100", "lost:0", every=2.0) == {("GpuLost", "critical", "0")}


@pytest.mark.parametrize("profile", ["h100", "a100", "l40s"])
def test_ten_minutes_of_health_are_quiet(profile: str) -> None:
    assert fired(600, profile, every=3.0) == set()
