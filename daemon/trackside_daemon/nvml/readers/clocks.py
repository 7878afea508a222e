"""Clocks of a GPU, and what keeps them down."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from trackside_daemon.nvml.readers.calls import ask, ask_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from trackside_daemon.nvml.readers.unsupported import Refusals
    from trackside_daemon.nvml.reading import Value

DOMAINS = ("graphics", "sm", "memory", "video")
"""As ``NVML_CLOCK_...`` counts them, from 0."""

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
"""By their bits, from the lowest."""

MHZ = 1e6


def clocks(nvml: Any, handle: Any, refusals: Refusals) -> list[Value]:
    """``nvmlDeviceGetClockInfo``, in MHz."""
    return _by_domain("clock_hertz", nvml.nvmlDeviceGetClockInfo, nvml, handle, refusals)


def highest(nvml: Any, handle: Any, refusals: Refusals) -> list[Value]:
    """``nvmlDeviceGetMaxClockInfo``, in MHz."""
    return _by_domain("clock_max_hertz", nvml.nvmlDeviceGetMaxClockInfo, nvml, handle, refusals)


def performance_state(nvml: Any, handle: Any, _: Refusals) -> list[Value]:
    """``nvmlDeviceGetPerformanceState``; absent while the driver does not know it."""
    state = nvml.nvmlDeviceGetPerformanceState(handle)
    return [("performance_state", (), state)] if state != nvml.NVML_PSTATE_UNKNOWN else []


def limits(nvml: Any, handle: Any, refusals: Refusals) -> list[Value]:
    """``nvmlDeviceGetCurrentClocksEventReasons``, of the reasons that this GPU supports.

    Drivers before 535 know both functions only by their old names.
    """
    new = ask(nvml, refusals, "nvmlDeviceGetCurrentClocksEventReasons", lambda: _events(nvml, handle))
    supported, active = new or _throttles(nvml, handle)
    return [
        ("clock_limit_active", (reason,), float(bool(active >> bit & 1)))
        for bit, reason in enumerate(REASONS)
        if supported >> bit & 1
    ]


def _by_domain(family: str, read: Callable[[Any, int], int], nvml: Any, handle: Any, refusals: Refusals) -> list[Value]:
    questions = ((family, (name,), partial(read, handle, domain)) for domain, name in enumerate(DOMAINS))
    return [(family, labels, megahertz * MHZ) for _, labels, megahertz in ask_all(nvml, refusals, questions)]


def _events(nvml: Any, handle: Any) -> tuple[int, int]:
    return (
        nvml.nvmlDeviceGetSupportedClocksEventReasons(handle),
        nvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
    )


def _throttles(nvml: Any, handle: Any) -> tuple[int, int]:
    return (
        nvml.nvmlDeviceGetSupportedClocksThrottleReasons(handle),
        nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
    )
