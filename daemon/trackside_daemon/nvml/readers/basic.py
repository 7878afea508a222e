"""Utilization, memory, power and energy of a GPU: readers of one call, or of one kind of call."""

from collections.abc import Callable
from functools import partial
from typing import Any

from trackside_daemon.nvml.readers.fields import POWER
from trackside_daemon.nvml.readers.unsupported import Unsupported, read_supported
from trackside_daemon.nvml.reading import Value

RESERVED = "memory_reserved_bytes"


def utilization(nvml: Any, handle: Any, _: Unsupported) -> list[Value]:
    """Read ``nvmlDeviceGetUtilizationRates``, in percent of the driver's last sample period (1/6 s to 1 s)."""
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    return [
        ("utilization_ratio", (), rates.gpu / 100),
        ("memory_controller_utilization_ratio", (), rates.memory / 100),
    ]


def engines(nvml: Any, handle: Any, unsupported: Unsupported) -> list[Value]:
    """Read ``nvmlDeviceGetEncoderUtilization`` and its siblings, in percent of a period that the driver chooses."""

    def ratio(read: Callable[[Any], list[int]]) -> float:
        return read(handle)[0] / 100

    functions = {
        "encoder": nvml.nvmlDeviceGetEncoderUtilization,
        "decoder": nvml.nvmlDeviceGetDecoderUtilization,
        "jpeg": nvml.nvmlDeviceGetJpgUtilization,
        "ofa": nvml.nvmlDeviceGetOfaUtilization,
    }
    return read_supported(
        nvml,
        unsupported,
        (("engine_utilization_ratio", (engine,), partial(ratio, read)) for engine, read in functions.items()),
    )


def memory(nvml: Any, handle: Any, unsupported: Unsupported) -> list[Value]:
    """Read `memory_info`, in bytes. A GPU that shares the host's memory, such as GB10, does not support it."""
    info = memory_info(nvml, handle, unsupported)
    reserved: list[Value] = [(RESERVED, (), info.reserved)] if hasattr(info, "reserved") else []
    return [
        ("memory_bytes", (), info.total),
        ("memory_used_bytes", (), info.used),
        ("memory_free_bytes", (), info.free),
        *reserved,
    ]


def memory_info(nvml: Any, handle: Any, unsupported: Unsupported) -> Any:
    """Call ``nvmlDeviceGetMemoryInfo_v2``, or the first version if the driver is older than 510.

    The first version has no reserved memory, and some drivers count it there as used.

    Raises:
        NVMLError: The GPU does not support it.
    """
    if RESERVED not in unsupported:
        try:
            return nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
        except (nvml.NVMLError_FunctionNotFound, nvml.NVMLError_ArgumentVersionMismatch) as error:
            unsupported.add(RESERVED, nvml.result(error.value))
    return nvml.nvmlDeviceGetMemoryInfo(handle)


def bar1(nvml: Any, handle: Any, _: Unsupported) -> list[Value]:
    """Read ``nvmlDeviceGetBAR1MemoryInfo``, in bytes."""
    info = nvml.nvmlDeviceGetBAR1MemoryInfo(handle)
    return [("bar1_memory_bytes", (), info.bar1Total), ("bar1_memory_used_bytes", (), info.bar1Used)]


def power(nvml: Any, handle: Any, unsupported: Unsupported) -> list[Value]:
    """Read ``nvmlDeviceGetPowerUsage``, in milliwatts, if the GPU does not support field 186.

    The value is the mean of a second on Ampere and later, except GA100. On earlier GPUs it is the power at the moment.
    """
    if POWER.name in unsupported or "fields" in unsupported:
        return [("power_watts", (), nvml.nvmlDeviceGetPowerUsage(handle) / 1000)]
    return []


def power_limit(nvml: Any, handle: Any, _: Unsupported) -> list[Value]:
    """Read ``nvmlDeviceGetEnforcedPowerLimit``, in milliwatts."""
    return [("power_limit_watts", ("enforced",), nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000)]


def energy(nvml: Any, handle: Any, _: Unsupported) -> list[Value]:
    """Read ``nvmlDeviceGetTotalEnergyConsumption``, in millijoules since the driver was loaded."""
    return [("energy_joules_total", (), nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000)]
