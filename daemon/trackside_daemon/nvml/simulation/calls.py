"""NVML calls that the readings of simulated GPUs would need, so that the call metrics have values in a simulation."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trackside_daemon.nvml.reading import GpuReading

HANDLE = "nvmlDeviceGetHandleByIndex"
COUNT = "nvmlDeviceGetCount"
# A family that each function reads in every cycle; functions that run rarely are left out.
FAMILIES = {
    "nvmlDeviceGetUtilizationRates": "utilization_ratio",
    "nvmlDeviceGetSamples": "busy_seconds_total",
    "nvmlGpmSampleGet": "sm_active_ratio",
    "nvmlGpmMetricsGet": "sm_active_ratio",
    "nvmlDeviceGetMemoryInfo": "memory_used_bytes",
    "nvmlDeviceGetTemperature": "temperature_celsius",
    "nvmlDeviceGetFieldValues": "power_watts",
    "nvmlDeviceGetTotalEnergyConsumption": "energy_joules_total",
    "nvmlDeviceGetClockInfo": "clock_hertz",
    "nvmlDeviceGetPerformanceState": "performance_state",
    "nvmlDeviceGetCurrentClocksEventReasons": "clock_limit_active",
    "nvmlDeviceGetComputeRunningProcesses_v3": "processes",
}
# Calls per cycle and GPU of the functions that are called more than once.
CALLS_PER_CYCLE = {"nvmlDeviceGetClockInfo": 4}
# Seconds per call, of the order that drivers need.
SECONDS: Mapping[str, float] = {
    COUNT: 2e-6,
    HANDLE: 3e-6,
    "nvmlDeviceGetUUID": 2e-6,
    "nvmlDeviceGetSamples": 300e-6,
    "nvmlGpmSampleGet": 250e-6,
    "nvmlDeviceGetFieldValues": 200e-6,
    "nvmlDeviceGetComputeRunningProcesses_v3": 150e-6,
}
DEFAULT_SECONDS = 30e-6


class SimulatedCalls:
    """Calls since the worker started.

    Attributes:
        counts: Number of calls by function and result, as in `Reading`.
    """

    def __init__(self) -> None:
        self.counts: dict[str, dict[str, int]] = {}

    @property
    def seconds(self) -> dict[str, float]:
        """Time spent in each function."""
        return {
            name: sum(results.values()) * SECONDS.get(name, DEFAULT_SECONDS) for name, results in self.counts.items()
        }

    def count_cycle(self, gpus: Sequence[GpuReading]) -> None:
        """Count the calls of the cycle with these readings."""
        self._add(COUNT)
        for gpu in gpus:
            families = {family for family, *_ in gpu.values}
            if families == {"up"}:
                self._add(HANDLE, "gpu_is_lost")
                continue
            readers = [name for name, family in FAMILIES.items() if family in families]
            for name in (HANDLE, "nvmlDeviceGetUUID", *readers):
                self._add(name, times=CALLS_PER_CYCLE.get(name, 1))

    def _add(self, name: str, result: str = "success", times: int = 1) -> None:
        results = self.counts.setdefault(name, {})
        results[result] = results.get(result, 0) + times
