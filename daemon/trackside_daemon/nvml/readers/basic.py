"""Use, memory, power and energy of a GPU: readers of one call or one kind of call each."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from trackside_daemon.nvml.readers.calls import ask_all
from trackside_daemon.nvml.readers.fields import POWER

if TYPE_CHECKING:
    from collections.abc import Callable

    from trackside_daemon.nvml.readers.unsupported import Refusals
    from trackside_daemon.nvml.reading import Value

RESERVED = "memory_reserved_bytes"


def utilization(nvml: Any, handle: Any, _: Refusals) -> list[Value]:
    """``nvmlDeviceGetUtilizationRates``, in percent of the driver's last sample period (1/6 s to 1 s)."""
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    return [
        ("utilization_ratio", (), rates.gpu / 100),
        ("memory_controller_utilization_ratio", (), rates.memory / 100),
    ]


def engines(nvml: Any, handle: Any, refusals: Refusals) -> list[Value]:
    """``nvmlDeviceGetEncoderUtilization`` and its kind, in percent of a sampling period of the driver's choice."""

    def share(read: Callable[[Any], list[int]]) -> float:
        return read(handle)[0] / 100

    functions = {
        "encoder": nvml.nvmlDeviceGetEncoderUtilization,
        "decoder": nvml.nvmlDeviceGetDecoderUtilization,
        "jpeg": nvml.nvmlDeviceGetJpgUtilization,
        "ofa": nvml.nvmlDeviceGetOfaUtilization,
    }
    return ask_all(
        nvml,
        refusals,
        (("engine_utilization_ratio", (engine,), partial(share, read)) for engine, read in functions.items()),
    )


def memory(nvml: Any, handle: Any, refusals: Refusals) -> list[Value]:
    """What `memory_info` says, in bytes. A GPU that shares the host's memory, such as GB10, refuses, and has none."""
    info = memory_info(nvml, handle, refusals)
    reserved: list[Value] = [("memory_reserved_bytes", (), info.reserved)] if hasattr(info, "reserved") else []
    return [
        ("memory_bytes", (), info.total),
        ("memory_used_bytes", (), info.used),
        ("memory_free_bytes", (), info.free),
        *reserved,
    ]


def memory_info(nvml: Any, handle: Any, refusals: Refusals) -> Any:
    """``nvmlDeviceGetMemoryInfo_v2``; where the driver is older, before 510, the first version.

    That says nothing of reserved memory, and some drivers count it there as used.

    Raises:
        NVMLError: The GPU refuses.
    """
    if RESERVED not in refusals:
        try:
            return nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
        except (nvml.NVMLError_FunctionNotFound, nvml.NVMLError_ArgumentVersionMismatch) as error:
            refusals.add(RESERVED, nvml.result(error.value))
    return nvml.nvmlDeviceGetMemoryInfo(handle)


def bar1(nvml: Any, handle: Any, _: Refusals) -> list[Value]:
    """``nvmlDeviceGetBAR1MemoryInfo``, in bytes."""
    info = nvml.nvmlDeviceGetBAR1MemoryInfo(handle)
    return [("bar1_memory_bytes", (), info.bar1Total), ("bar1_memory_used_bytes", (), info.bar1Used)]


def power(nvml: Any, handle: Any, refusals: Refusals) -> list[Value]:
    """``nvmlDeviceGetPowerUsage``, in milliwatts, where field 186 is refused.

    It is the mean of a second on Ampere and later, except GA100, and what is drawn now before.
    """
    if POWER.name not in refusals and "fields" not in refusals:
        return []
    return [("power_watts", (), nvml.nvmlDeviceGetPowerUsage(handle) / 1000)]


def power_limit(nvml: Any, handle: Any, _: Refusals) -> list[Value]:
    """``nvmlDeviceGetEnforcedPowerLimit``, in milliwatts."""
    return [("power_limit_watts", ("enforced",), nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000)]


def energy(nvml: Any, handle: Any, _: Refusals) -> list[Value]:
    """``nvmlDeviceGetTotalEnergyConsumption``, in millijoules since the driver was loaded."""
    return [("energy_joules_total", (), nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000)]
