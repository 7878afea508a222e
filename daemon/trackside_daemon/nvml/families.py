"""What is read of a GPU: one function a driver call, and the bounds beyond which a value is not a measurement.

Every function takes the ``pynvml`` module and a device handle, and returns values in base units.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from trackside_daemon.nvml.reading import Value


def utilization(nvml: Any, handle: Any) -> list[Value]:
    """``nvmlDeviceGetUtilizationRates``, in percent of the driver's last sample period (1/6 s to 1 s)."""
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    return [
        ("utilization_ratio", (), rates.gpu / 100),
        ("memory_controller_utilization_ratio", (), rates.memory / 100),
    ]


def memory(nvml: Any, handle: Any) -> list[Value]:
    """``nvmlDeviceGetMemoryInfo_v2``, in bytes. The first version counts reserved memory as used."""
    info = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    return [
        ("memory_bytes", (), info.total),
        ("memory_used_bytes", (), info.used),
        ("memory_free_bytes", (), info.free),
        ("memory_reserved_bytes", (), info.reserved),
    ]


def temperature(nvml: Any, handle: Any) -> list[Value]:
    """``nvmlDeviceGetTemperature``, in degrees Celsius."""
    return [("temperature_celsius", ("gpu",), nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))]


def power(nvml: Any, handle: Any) -> list[Value]:
    """``nvmlDeviceGetPowerUsage``, in milliwatts."""
    return [("power_watts", (), nvml.nvmlDeviceGetPowerUsage(handle) / 1000)]


def power_limit(nvml: Any, handle: Any) -> list[Value]:
    """``nvmlDeviceGetEnforcedPowerLimit``, in milliwatts."""
    return [("power_limit_watts", ("enforced",), nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000)]


def energy(nvml: Any, handle: Any) -> list[Value]:
    """``nvmlDeviceGetTotalEnergyConsumption``, in millijoules since the driver was loaded."""
    return [("energy_joules_total", (), nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000)]


READERS: tuple[Callable[[Any, Any], list[Value]], ...] = (utilization, memory, temperature, power, power_limit, energy)

RATIO = (0.0, 1.001)
BYTES = (0.0, 2.0**50)
WATTS = (0.0, 3000.0)

#: Drivers answer 0xFFFFFFFF, 9.2e18 or more than 100 % for what they do not know: NVIDIA/DCGM#199, dcgm-exporter#418.
BOUNDS = {
    "utilization_ratio": RATIO,
    "memory_controller_utilization_ratio": RATIO,
    "memory_bytes": BYTES,
    "memory_used_bytes": BYTES,
    "memory_free_bytes": BYTES,
    "memory_reserved_bytes": BYTES,
    "temperature_celsius": (-40.0, 150.0),
    "power_watts": WATTS,
    "power_limit_watts": WATTS,
    "energy_joules_total": (0.0, 1e13),
}


def measure(nvml: Any, handle: Any) -> list[Value]:
    """Every value that this GPU measures; one call's refusal costs only that call's families.

    Raises:
        NVMLError_GpuIsLost: The GPU fell off the bus.
    """
    values: list[Value] = []
    for read in READERS:
        try:
            values += read(nvml, handle)
        except nvml.NVMLError_GpuIsLost:
            raise
        except nvml.NVMLError:
            continue
    return [value for value in values if _plausible(value)]


def _plausible(value: Value) -> bool:
    low, high = BOUNDS[value[0]]
    return low <= value[2] <= high
