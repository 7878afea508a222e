"""State and health of a GPU in the NVLink fabric of its NVSwitches."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from trackside_daemon.nvml.readers.calls import call_if_supported

if TYPE_CHECKING:
    from trackside_daemon.nvml.readers.unsupported import Unsupported
    from trackside_daemon.nvml.reading import Value

# Words in pynvml's `NVML_GPU_FABRIC_HEALTH_MASK_...`, by our label.
CONDITIONS = {
    "degraded_bandwidth": "DEGRADED_BW",
    "route_recovery": "ROUTE_RECOVERY",
    "route_unhealthy": "ROUTE_UNHEALTHY",
    "access_timeout_recovery": "ACCESS_TIMEOUT_RECOVERY",
    "incorrect_configuration": "INCORRECT_CONFIGURATION",
}


def fabric(nvml: Any, handle: Any, unsupported: Unsupported) -> list[Value]:
    """Read ``nvmlDeviceGetGpuFabricInfoV`` version 3, or 2 if the driver is older; Hopper and later with NVSwitch."""
    version3 = "version 3 of nvmlDeviceGetGpuFabricInfoV"
    info = call_if_supported(nvml, unsupported, version3, lambda: _read_info(nvml, handle, "_v3"))
    info = info or _read_info(nvml, handle, "V")
    values: list[Value] = [("fabric_state", (), info.state)]
    if info.state != nvml.NVML_GPU_FABRIC_STATE_COMPLETED:
        return values
    problems = _problems(nvml, info)
    values += [("fabric_problem", (condition,), float(present)) for condition, present in problems.items()]
    # The mask omits what this GPU does not support, so a fabric without any known condition does not count as healthy.
    summary = getattr(info, "healthSummary", nvml.NVML_GPU_FABRIC_HEALTH_SUMMARY_NOT_SUPPORTED)
    if summary != nvml.NVML_GPU_FABRIC_HEALTH_SUMMARY_NOT_SUPPORTED:
        values.append(("fabric_healthy", (), float(summary == nvml.NVML_GPU_FABRIC_HEALTH_SUMMARY_HEALTHY)))
    elif len(problems) > 1:
        values.append(("fabric_healthy", (), float(not any(problems.values()))))
    return values


def _read_info(nvml: Any, handle: Any, version: str) -> Any:
    """Fill in a structure ``c_nvmlGpuFabricInfo{version}_t``."""
    info = getattr(nvml, f"c_nvmlGpuFabricInfo{version}_t")()
    nvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
    return info


def _problems(nvml: Any, info: Any) -> dict[str, bool]:
    """Return whether each condition that the GPU can report is present, and whether registration failed."""
    problems = {"registration_failed": info.status != nvml.NVML_SUCCESS}
    for condition, word in CONDITIONS.items():
        shift = getattr(nvml, f"NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_{word}")
        width = getattr(nvml, f"NVML_GPU_FABRIC_HEALTH_MASK_WIDTH_{word}")
        state = info.healthMask >> shift & width
        if state:
            # 0 means not supported. 1 means no error in the configuration, but for the other conditions that they are
            # present.
            problems[condition] = state > 1 if word == "INCORRECT_CONFIGURATION" else state == 1
    return problems
