"""Continuation of the worker's counters across the workers that replace it, and of the driver's across wrong readings."""

from collections.abc import Callable
from typing import TypeVar

import msgspec

from trackside_daemon.nvml.reading import GpuReading, Reading, Value

# Families that the worker sums up. The driver keeps all other counters, and they continue without our help.
WORKER_COUNTERS = {"busy_seconds_total"}

# Consecutive readings, each of which continues the one before, after which a driver's counter that fell or leapt is believed.
READINGS_TO_BELIEVE = 3
LEAP = 1e6  # a counter that more than doubles, and grows by more than this, has leapt

Key = TypeVar("Key")
Count = TypeVar("Count")


class CounterContinuity:
    """Totals of all workers so far."""

    def __init__(self) -> None:
        self._before = self._total = Reading()
        self._values_before: dict[tuple[str, str, tuple[str, ...]], float] = {}
        self._values = dict(self._values_before)
        self._driver_counters: dict[tuple[str, str, tuple[str, ...]], _DriverCounter] = {}

    def worker_replaced(self) -> None:
        """Add the next readings, which are a new worker's, to the totals so far."""
        self._before = self._total
        self._values_before = dict(self._values)

    def accept(self, reading: Reading) -> Reading:
        """Return the reading with the counters of all workers."""
        before = self._before
        self._total = msgspec.structs.replace(
            reading,
            gpus=[self._continue_gpu(gpu) for gpu in reading.gpus],
            calls=_merge(before.calls, reading.calls, lambda old, new: _merge(old, new, int.__add__)),
            call_seconds=_merge(before.call_seconds, reading.call_seconds, float.__add__),
            rejected=_merge(before.rejected, reading.rejected, int.__add__),
            xids=_merge(before.xids, reading.xids, lambda old, new: _merge(old, new, _add_xids)),
        )
        return self._total

    def _continue_gpu(self, gpu: GpuReading) -> GpuReading:
        positions = [position for position, value in enumerate(gpu.values) if value[0].endswith("_total")]
        if not positions:
            return gpu
        values = gpu.values.copy()
        for position in positions:
            values[position] = self._continue_value(gpu.uuid, *values[position])
        return msgspec.structs.replace(gpu, values=values)

    def _continue_value(self, uuid: str, family: str, labels: tuple[str, ...], number: float) -> Value:
        key = (uuid, family, labels)
        if family not in WORKER_COUNTERS:
            counter = self._driver_counters.setdefault(key, _DriverCounter(number))
            return family, labels, counter.accept(number)
        self._values[key] = self._values_before.get(key, 0.0) + number
        return family, labels, self._values[key]


class _DriverCounter:
    """The total of a counter that the driver keeps, without single wrong readings.

    A counter falls when the GPU is reset, so a lower value is believed once the next readings continue it.

    Args:
        total: The first reading.
    """

    def __init__(self, total: float) -> None:
        self._total = total
        self._doubted = total
        self._readings = 0

    def accept(self, number: float) -> float:
        """Return the total after a reading."""
        if not _continues(self._total, number):
            self._readings = self._readings + 1 if self._readings and _continues(self._doubted, number) else 1
            self._doubted = number
            if self._readings < READINGS_TO_BELIEVE:
                return self._total
        self._total = number
        self._readings = 0
        return number


def _continues(total: float, number: float) -> bool:
    return total <= number <= 2 * total + LEAP


def _merge(old: dict[Key, Count], new: dict[Key, Count], add: Callable[[Count, Count], Count]) -> dict[Key, Count]:
    return {**old, **{key: add(old[key], count) if key in old else count for key, count in new.items()}}


def _add_xids(old: tuple[int, float], new: tuple[int, float]) -> tuple[int, float]:
    return old[0] + new[0], max(old[1], new[1])
