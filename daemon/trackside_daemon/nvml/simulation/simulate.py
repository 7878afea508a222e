"""Readings of GPUs that do not exist, as a pure function of time, so that a new worker continues the old one's."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from trackside_daemon.nvml.reading import DOWN, GpuReading, Reading, Value
from trackside_daemon.nvml.simulation.boards import BOARDS, Board
from trackside_daemon.nvml.simulation.faults import XID, XID_SECONDS, faults_by_gpu, is_lost, xids
from trackside_daemon.nvml.simulation.simulated_gpu import SimulatedGpu, values


class WorkerStart(NamedTuple):
    """Start of a worker, from which it counts Xid errors and busy seconds."""

    monotonic: float  # the start, by the simulation's clock
    epoch: float  # Unix time of that clock's 0


BOOT = WorkerStart(0.0, 0.0)

# What each group of readers would read, as patterns of a value's name and labels; groups that read nothing here are left out.
READ_BY = {
    "mig": "mig_mode",
    "utilization": "(memory_controller_)?utilization_ratio",
    "busy": "busy_seconds_total",
    "gpm": "[a-z_]+_active_ratio .*|[a-z_]+_active_ratio|sm_occupancy_ratio|pcie_[a-z]+_bytes_per_second",
    "memory": "memory_([a-z]+_)?bytes",
    "temperature": "temperature_celsius gpu",
    "temperature-threshold": "temperature_threshold_celsius .*",
    "thermal-margin": "thermal_margin_celsius .*",
    "fields": "power_average_watts|temperature_celsius memory|clock_limited_seconds_total .*|recovery_action"
    "|(pcie|nvlink)_(transmit|receive)_bytes_total",
    "slow-fields": "(pcie|nvlink)_errors_total .*",
    "power": "power_watts",
    "power-limit": "power_limit_watts .*",
    "energy": "energy_joules_total",
    "clock": "clock_hertz .*",
    "clock-max": "clock_max_hertz .*",
    "performance-state": "performance_state",
    "clock-limit": "clock_limit_active .*",
    "pcie": "pcie_link_[a-z_]+|pcie_replays_total",
    "nvlink": "nvlink_links(_up)?|nvlink_speed_bytes_per_second",
    "ecc": "ecc_[a-z_]+ .*",
    "sram": "sram_threshold_exceeded",
    "remapped-rows": "remapped_rows_total .*|row_remap_(pending|failed)",
    "row-remap-banks": "row_remap_banks .*",
    "fabric": "fabric_.*",
    "persistence": "persistence_mode",
    "processes": "processes",
}


def simulate(
    count: int,
    now: float,
    profile: str = "h100",
    faults: Iterable[str] = (),
    start: WorkerStart = BOOT,
    *,
    skip: Iterable[str] = (),
) -> Reading:
    """Return the reading of GPUs in training at one moment.

    Args:
        count: Number of GPUs.
        now: Seconds of a monotonic clock.
        profile: Board of the GPUs: a name of `BOARDS`.
        faults: Faults of the GPUs, as in `faults_by_gpu`.
        start: Start of the worker.
        skip: Groups of readers whose values are left out.

    Raises:
        ValueError: There is no such profile, fault or GPU.
    """
    if profile not in BOARDS:
        raise ValueError(f"no simulated profile {profile!r}; the profiles are {', '.join(BOARDS)}")
    board = BOARDS[profile]
    by_gpu = faults_by_gpu(faults, count)
    states = (SimulatedGpu(board, index, now, own, start.monotonic) for index, own in enumerate(by_gpu))
    skipped = re.compile("|".join(READ_BY[name] for name in skip if name in READ_BY)) if skip else None
    gpus = [
        GpuReading(gpu.index, uuid(gpu.index), _info(board, gpu.index, count), _values(gpu, skipped)) for gpu in states
    ]
    return Reading(gpus, xids=_xids(by_gpu, now, start))


def _xids(by_gpu: list[frozenset[str]], now: float, start: WorkerStart) -> dict[str, dict[int, tuple[int, float]]]:
    errors = {}
    for index, faults in enumerate(by_gpu):
        total = xids(faults, now)
        before = xids(faults, start.monotonic)
        if total > before:
            errors[uuid(index)] = {XID: (total - before, start.epoch + total * XID_SECONDS)}
    return errors


def uuid(index: int) -> str:
    """Return the UUID of the simulated GPU with this index."""
    return f"GPU-00000000-0000-0000-0000-{index:012x}"


def _info(board: Board, index: int, count: int) -> dict[str, str]:
    return {
        "name": board.name,
        "pci_bus_id": f"00000000:{index + 1:02X}:00.0",
        "serial": "",
        "vbios_version": board.vbios,
        "architecture": board.architecture,
        "compute_capability": board.compute_capability,
        "minor": str(index),
        "numa_node": str(2 * index // count),  # as on a machine with two sockets
        "source": "simulated",
    }


def _values(gpu: SimulatedGpu, skipped: re.Pattern[str] | None) -> list[Value]:
    if is_lost(gpu.faults, gpu.now):
        return DOWN
    if skipped is None:
        return values(gpu)
    return [value for value in values(gpu) if not skipped.fullmatch(" ".join((value[0], *value[1])))]


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
