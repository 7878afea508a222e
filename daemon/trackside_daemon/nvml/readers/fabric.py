"""How a GPU stands with the NVLink fabric of its NVSwitches."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from trackside_daemon.nvml.readers.calls import ask

if TYPE_CHECKING:
    from trackside_daemon.nvml.readers.unsupported import Refusals
    from trackside_daemon.nvml.reading import Value

CONDITIONS = {
    "degraded_bandwidth": "DEGRADED_BW",
    "route_recovery": "ROUTE_RECOVERY",
    "route_unhealthy": "ROUTE_UNHEALTHY",
    "access_timeout_recovery": "ACCESS_TIMEOUT_RECOVERY",
    "incorrect_configuration": "INCORRECT_CONFIGURATION",
}
"""By the word in pynvml's ``NVML_GPU_FABRIC_HEALTH_MASK_...``."""


def fabric(nvml: Any, handle: Any, refusals: Refusals) -> list[Value]:
    """``nvmlDeviceGetGpuFabricInfoV``, of version 3, or 2 where the driver is older; Hopper and later with NVSwitch."""
    info = ask(nvml, refusals, "version 3 of nvmlDeviceGetGpuFabricInfoV", lambda: _info(nvml, handle, "_v3"))
    info = info or _info(nvml, handle, "V")
    values: list[Value] = [("fabric_state", (), info.state)]
    if info.state != nvml.NVML_GPU_FABRIC_STATE_COMPLETED:
        return values
    problems = _problems(nvml, info)
    values += [("fabric_problem", (condition,), float(is_so)) for condition, is_so in problems.items()]
    # The mask is silent about what this GPU does not support; a fabric of which nothing is known is not healthy.
    summary = getattr(info, "healthSummary", nvml.NVML_GPU_FABRIC_HEALTH_SUMMARY_NOT_SUPPORTED)
    if summary != nvml.NVML_GPU_FABRIC_HEALTH_SUMMARY_NOT_SUPPORTED:
        values.append(("fabric_healthy", (), float(summary == nvml.NVML_GPU_FABRIC_HEALTH_SUMMARY_HEALTHY)))
    elif len(problems) > 1:
        values.append(("fabric_healthy", (), float(not any(problems.values()))))
    return values


def _info(nvml: Any, handle: Any, version: str) -> Any:
    """What is told in the structure ``c_nvmlGpuFabricInfo{version}_t``, of which older pynvml have only that of V."""
    make = getattr(nvml, f"c_nvmlGpuFabricInfo{version}_t")
    if make is None:
        raise nvml.NVMLError(nvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    info = make()
    nvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
    return info


def _problems(nvml: Any, info: Any) -> dict[str, bool]:
    """Which conditions there are, of those that the GPU can tell, and whether it failed to join at all."""
    problems = {"registration_failed": info.status != nvml.NVML_SUCCESS}
    for condition, word in CONDITIONS.items():
        shift = getattr(nvml, f"NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_{word}")
        width = getattr(nvml, f"NVML_GPU_FABRIC_HEALTH_MASK_WIDTH_{word}")
        if shift is None or width is None:
            continue
        told = info.healthMask >> shift & width
        if told:
            problems[condition] = told > 1 if word == "INCORRECT_CONFIGURATION" else told == 1
    return problems
