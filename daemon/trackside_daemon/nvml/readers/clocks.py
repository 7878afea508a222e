"""Clocks of a GPU, and the reasons that limit them."""

from collections.abc import Callable
from functools import partial
from typing import Any

from trackside_daemon.nvml.readers.unsupported import Unsupported, call_if_supported, read_supported
from trackside_daemon.nvml.reading import Value

DOMAINS = ("graphics", "sm", "memory", "video")  # clock domains in the order of `NVML_CLOCK_...`, from 0

# Reasons by their bits, from the lowest.
REASONS = (
    "gpu_idle",
    "applications_clocks",
    "sw_power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal",
    "hw_thermal",
    "hw_power_brake",
    "display",
)

MHZ = 1e6


def clocks(nvml: Any, handle: Any, unsupported: Unsupported) -> list[Value]:
    """Read ``nvmlDeviceGetClockInfo``, in MHz."""
    return _by_domain("clock_hertz", nvml.nvmlDeviceGetClockInfo, nvml, handle, unsupported)


def max_clocks(nvml: Any, handle: Any, unsupported: Unsupported) -> list[Value]:
    """Read ``nvmlDeviceGetMaxClockInfo``, in MHz."""
    return _by_domain("clock_max_hertz", nvml.nvmlDeviceGetMaxClockInfo, nvml, handle, unsupported)


def performance_state(nvml: Any, handle: Any, _: Unsupported) -> list[Value]:
    """Read ``nvmlDeviceGetPerformanceState``; no value while it is unknown to the driver."""
    state = nvml.nvmlDeviceGetPerformanceState(handle)
    return [("performance_state", (), state)] if state != nvml.NVML_PSTATE_UNKNOWN else []


def active_limits(nvml: Any, handle: Any, unsupported: Unsupported) -> list[Value]:
    """Read ``nvmlDeviceGetCurrentClocksEventReasons``, for the reasons that this GPU supports."""
    # Drivers before 535 have both functions only under their old names.
    new = call_if_supported(
        nvml, unsupported, "nvmlDeviceGetCurrentClocksEventReasons", lambda: _event_reasons(nvml, handle)
    )
    supported, active = new or _throttle_reasons(nvml, handle)
    return [
        ("clock_limit_active", (reason,), float(bool(active >> bit & 1)))
        for bit, reason in enumerate(REASONS)
        if supported >> bit & 1
    ]


def _by_domain(
    family: str, read: Callable[[Any, int], int], nvml: Any, handle: Any, unsupported: Unsupported
) -> list[Value]:
    calls = ((family, (name,), partial(read, handle, domain)) for domain, name in enumerate(DOMAINS))
    return [(family, labels, megahertz * MHZ) for _, labels, megahertz in read_supported(nvml, unsupported, calls)]


def _event_reasons(nvml: Any, handle: Any) -> tuple[int, int]:
    return (
        nvml.nvmlDeviceGetSupportedClocksEventReasons(handle),
        nvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
    )


def _throttle_reasons(nvml: Any, handle: Any) -> tuple[int, int]:
    return (
        nvml.nvmlDeviceGetSupportedClocksThrottleReasons(handle),
        nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
    )
