"""Use, memory, temperature and power of a GPU: readers of one call each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trackside_daemon.nvml.reading import Value
    from trackside_daemon.nvml.refusals import Refusals


def utilization(nvml: Any, handle: Any, _: Refusals) -> list[Value]:
    """``nvmlDeviceGetUtilizationRates``, in percent of the driver's last sample period (1/6 s to 1 s)."""
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    return [
        ("utilization_ratio", (), rates.gpu / 100),
        ("memory_controller_utilization_ratio", (), rates.memory / 100),
    ]


def memory(nvml: Any, handle: Any, _: Refusals) -> list[Value]:
    """``nvmlDeviceGetMemoryInfo_v2``, in bytes. The first version counts reserved memory as used."""
    info = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    return [
        ("memory_bytes", (), info.total),
        ("memory_used_bytes", (), info.used),
        ("memory_free_bytes", (), info.free),
        ("memory_reserved_bytes", (), info.reserved),
    ]


def temperature(nvml: Any, handle: Any, _: Refusals) -> list[Value]:
    """``nvmlDeviceGetTemperature``, in degrees Celsius."""
    return [("temperature_celsius", ("gpu",), nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))]


def power(nvml: Any, handle: Any, _: Refusals) -> list[Value]:
    """``nvmlDeviceGetPowerUsage``, in milliwatts."""
    return [("power_watts", (), nvml.nvmlDeviceGetPowerUsage(handle) / 1000)]


def power_limit(nvml: Any, handle: Any, _: Refusals) -> list[Value]:
    """``nvmlDeviceGetEnforcedPowerLimit``, in milliwatts."""
    return [("power_limit_watts", ("enforced",), nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000)]


def energy(nvml: Any, handle: Any, _: Refusals) -> list[Value]:
    """``nvmlDeviceGetTotalEnergyConsumption``, in millijoules since the driver was loaded."""
    return [("energy_joules_total", (), nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000)]
