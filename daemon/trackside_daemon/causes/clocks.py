"""Clocks of GPUs that heat, power or a setting hold down."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.causes.cause import Kind, drawn_accounts
from trackside_daemon.model.families import gpu
from trackside_daemon.model.text import with_unit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trackside_daemon.causes.cause import Cause, LostTime
    from trackside_daemon.causes.readings import Readings, Rise

SLOWER = 0.97  # a clock or a number of lanes below this share of its usual one explains something
IDLE = "gpu_idle"  # reason of a low clock that follows from too little work

# Words for the reasons of a low clock, the ones that say most first.
_REASONS = {
    "hw_thermal": "thermal slowdown by the hardware",
    "sw_thermal": "thermal slowdown by the driver",
    "hw_power_brake": "power brake",
    "hw_slowdown": "slowdown by the hardware",
    "sw_power_cap": "power limit",
    "sync_boost": "the clock of another GPU",
    "applications_clocks": "set application clocks",
}


def _rose(readings: Readings) -> Iterator[Rise]:
    for labels, clock in readings.of(gpu.CLOCK, domain="sm"):
        if not clock.fell(SLOWER):
            continue
        active = _active(readings, labels["gpu"])
        reasons = [text for reason, text in _REASONS.items() if reason in active]
        # An idle GPU lowers its clock by itself.
        if IDLE in active and not reasons:
            continue
        reasons += [
            f"its limit was lowered from {with_unit(power.usual, 'W')} to {with_unit(power.now, 'W')}"
            for _, power in readings.of(gpu.POWER_LIMIT, gpu=labels["gpu"], limit="enforced")
            if power.fell(SLOWER)
        ]
        why = f": {', '.join(reasons)}" if reasons else ""
        what = f"the clock of GPU {labels['gpu']}"
        yield readings.slower("gpu_clock", what, clock, lambda hertz: with_unit(hertz, "Hz"), more=why)


def _active(readings: Readings, number: str) -> set[str]:
    """Return the reasons that lowered a GPU's clock during the slow-down."""
    slow = readings.slow
    return {
        one.labels.get("reason", "")
        for one in readings.series(gpu.CLOCK_LIMIT_ACTIVE, gpu=number)
        if any(value for time, value in one.points if time >= slow.began) and one.points[-1][0] >= slow.began
    }


def _throttled(kind: Kind, time: LostTime) -> Iterator[Cause]:
    """Add what the other ranks waited for the one with the lowest clock: the run is as slow as that one."""
    for lost, account in drawn_accounts(kind, time):
        most = max(entries.get("throttled", 0.0) for entries in time.by_rank.values())
        waited = time.draw(most - lost, "communication", "compute", least=0.0)
        yield kind.found(time, lost + waited, account)


CLOCK = Kind("gpu_clock", families=(gpu.CLOCK, gpu.CLOCK_LIMIT_ACTIVE, gpu.POWER_LIMIT), rose=_rose)
THROTTLED = Kind(
    "throttled",
    "heat or a power brake held the GPUs' clocks down",
    "improve the cooling, move the job to another node, or set a power limit on purpose",
    f"{gpu.CLOCK_LIMIT_ACTIVE.name}, {gpu.TEMPERATURE.name}",
    ("throttled",),
    low=0.3,
    alerts=("GpuThrottled", "GpuHot"),
    lost=_throttled,
)
