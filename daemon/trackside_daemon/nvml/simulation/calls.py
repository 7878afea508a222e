"""The calls that reading simulated GPUs would take of real ones, so that what shows calls has something to show."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trackside_daemon.nvml.reading import GpuReading

HANDLE, COUNT = "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetCount"
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
"""What is asked of a GPU in each cycle that has the family, once but for the clocks; what changes seldom is left out."""
TIMES = {"nvmlDeviceGetClockInfo": 4}
SECONDS: Mapping[str, float] = {
    COUNT: 2e-6,
    HANDLE: 3e-6,
    "nvmlDeviceGetUUID": 2e-6,
    "nvmlDeviceGetSamples": 300e-6,
    "nvmlGpmSampleGet": 250e-6,
    "nvmlDeviceGetFieldValues": 200e-6,
    "nvmlDeviceGetComputeRunningProcesses_v3": 150e-6,
}
"""Of a call, of the order of what drivers take, or else `OTHERWISE`."""
OTHERWISE = 30e-6


class Calls:
    """Since the worker began.

    Attributes:
        counts: By function and result, how many, as in `Reading`.
    """

    def __init__(self) -> None:
        self.counts: dict[str, dict[str, int]] = {}

    @property
    def seconds(self) -> dict[str, float]:
        """Time spent in each function."""
        return {name: sum(results.values()) * SECONDS.get(name, OTHERWISE) for name, results in self.counts.items()}

    def read(self, gpus: Sequence[GpuReading]) -> None:
        """Another cycle has given these readings."""
        self._add(COUNT)
        for gpu in gpus:
            families = {family for family, *_ in gpu.values}
            if families == {"up"}:
                self._add(HANDLE, "gpu_is_lost")
                continue
            for name in (HANDLE, "nvmlDeviceGetUUID", *(name for name, one in FAMILIES.items() if one in families)):
                self._add(name, times=TIMES.get(name, 1))

    def _add(self, name: str, result: str = "success", times: int = 1) -> None:
        results = self.counts.setdefault(name, {})
        results[result] = results.get(result, 0) + times
