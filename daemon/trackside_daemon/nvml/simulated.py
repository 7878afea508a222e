"""GPUs that do not exist, for demonstrations and tests: a pure function of time, so a new worker goes on as the old."""

from __future__ import annotations

import math

from trackside_daemon.nvml.reading import GpuReading, Reading, Value

MEMORY = 80 * 1024**3
RESERVED = 600 * 1024**2
POWER_LIMIT = 700.0
IDLE_POWER, BUSY_POWER = 95.0, 640.0
THERMAL_LAG = 15.0
"""Seconds by which the temperature follows the power."""

BUSY = 0.88
#: What makes the utilisation waver around BUSY: amplitude (their sum keeps it below 1) and period in seconds.
WAVES = ((0.06, 90.0), (0.04, 17.0), (0.015, 4.1))


def simulate(count: int, now: float) -> Reading:
    """*count* GPUs like an H100 80GB under training, at *now* seconds of a clock that only goes forward."""
    return Reading([_gpu(index, now) for index in range(count)])


def _gpu(index: int, now: float) -> GpuReading:
    info = {
        "name": "Simulated H100 80GB HBM3",
        "pci_bus_id": f"00000000:{index + 1:02X}:00.0",
        "source": "simulated",
    }
    return GpuReading(index, f"GPU-00000000-0000-0000-0000-{index:012x}", info, _values(index, now))


def _values(index: int, now: float) -> list[Value]:
    busy = _utilization(index, now)
    used = round(MEMORY * (0.72 + 0.05 * math.sin(now / 40 + index)))
    return [
        ("up", (), 1.0),
        ("utilization_ratio", (), busy),
        ("memory_controller_utilization_ratio", (), 0.55 * busy),
        ("memory_bytes", (), MEMORY),
        ("memory_used_bytes", (), used),
        ("memory_free_bytes", (), MEMORY - RESERVED - used),
        ("memory_reserved_bytes", (), RESERVED),
        ("temperature_celsius", ("gpu",), 29.0 + 38.0 * _utilization(index, now - THERMAL_LAG) + index % 4),
        ("power_watts", (), IDLE_POWER + (BUSY_POWER - IDLE_POWER) * busy),
        ("power_limit_watts", ("enforced",), POWER_LIMIT),
        ("energy_joules_total", (), IDLE_POWER * now + (BUSY_POWER - IDLE_POWER) * _busy_seconds(index, now)),
    ]


def _utilization(index: int, now: float) -> float:
    return BUSY + sum(size * math.sin(math.tau * now / period + index) for size, period in WAVES)


def _busy_seconds(index: int, now: float) -> float:
    """The integral of `_utilization` from 0 to *now*, so that the energy's rate is the power."""
    waves = (
        size * period / math.tau * (math.cos(index) - math.cos(math.tau * now / period + index))
        for size, period in WAVES
    )
    return BUSY * now + sum(waves)
