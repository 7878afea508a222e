"""Causes on the ranks' GPUs: lower clocks, other processes, errors, and a narrow PCIe link."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.alerts.evidence.causes.cause import SlowDownCause, rises
from trackside_daemon.alerts.evidence.causes.level import level
from trackside_daemon.model.families import gpu as gpu_families
from trackside_daemon.model.text import byte_size, percent, with_unit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trackside_daemon.alerts.evidence.causes.readings import Readings
    from trackside_daemon.history.read.resources import Resource

ERRORS = {
    gpu_families.ECC_ERRORS: "ECC errors",
    gpu_families.REMAPPED_ROWS: "remapped memory rows",
    gpu_families.PCIE_REPLAYS: "PCIe replays",
    gpu_families.PCIE_ERRORS: "PCIe errors",
    gpu_families.NVLINK_ERRORS: "NVLink errors",
}
FAMILIES = (
    *(gpu_families.CLOCK, gpu_families.CLOCK_LIMIT_ACTIVE, gpu_families.POWER_LIMIT, gpu_families.PCIE_LINK_WIDTH),
    *(gpu_families.PROCESS_MEMORY, gpu_families.PROCESS_SM_UTILIZATION, gpu_families.XID_LAST, *ERRORS),
)

SLOWER = 0.97  # a clock below this share of its usual one explains something
LATE = 30.0  # seconds by which the history may be late to see a process or an error
LEAST_USE = 0.05  # utilization by another process that matters
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


def gpu_causes(readings: Readings) -> Iterator[SlowDownCause]:
    """Yield the causes on the ranks' GPUs."""
    yield from _clocks(readings)
    yield from _others(readings)
    yield from _lanes(readings)
    yield from _errors(readings)


def _clocks(readings: Readings) -> Iterator[SlowDownCause]:
    for labels, clock in readings.of(gpu_families.CLOCK, domain="sm"):
        if not clock.fell(SLOWER):
            continue
        active = _active(readings, labels["gpu"])
        reasons = [text for reason, text in _REASONS.items() if reason in active]
        # An idle GPU lowers its clock by itself.
        if IDLE in active and not reasons:
            continue
        reasons += [
            f"its limit was lowered from {with_unit(power.usual, 'W')} to {with_unit(power.now, 'W')}"
            for _, power in readings.of(gpu_families.POWER_LIMIT, gpu=labels["gpu"], limit="enforced")
            if power.fell(SLOWER)
        ]
        why = f": {', '.join(reasons)}" if reasons else ""
        text = rises(f"the clock of GPU {labels['gpu']}", clock, readings, lambda hertz: with_unit(hertz, "Hz"))
        yield SlowDownCause("gpu_clock", f"{text}{why}", _lost_speed(readings, clock.now / clock.usual), clock)


def _active(readings: Readings, gpu: str) -> set[str]:
    """Return the reasons that lowered a GPU's clock during the slow-down."""
    slow = readings.slow
    return {
        one.labels.get("reason", "")
        for one in readings.series(gpu_families.CLOCK_LIMIT_ACTIVE, gpu=gpu)
        if any(value for time, value in one.points if time >= slow.began) and one.points[-1][0] >= slow.began
    }


def _lanes(readings: Readings) -> Iterator[SlowDownCause]:
    for labels, lanes in readings.of(gpu_families.PCIE_LINK_WIDTH):
        if lanes.fell(SLOWER):
            text = rises(f"the PCIe link of GPU {labels['gpu']}", lanes, readings, lambda count: f"{count:.0f} lanes")
            yield SlowDownCause("pcie_link", text, _lost_speed(readings, lanes.now / lanes.usual), lanes)


def _lost_speed(readings: Readings, left: float) -> float:
    """Return the share of the lost time that a lower speed explains, *left* times the usual one."""
    return min(1.0, (1 - left) / readings.slow.lost)


def _others(readings: Readings) -> Iterator[SlowDownCause]:
    """Yield the processes outside of the training that came to the ranks' GPUs, or use them more than before."""
    gpus = {gpu for rank in readings.ranks for gpu in rank.gpus}
    for held in readings.series(gpu_families.PROCESS_MEMORY):
        gpu, pid = held.labels.get("gpu", ""), held.labels.get("pid", "")
        if gpu not in gpus or pid in readings.pids or held.points[-1][0] < readings.slow.began:
            continue
        use = readings.series(gpu_families.PROCESS_SM_UTILIZATION, gpu=gpu, pid=pid)
        before, now = _use(readings, use)
        came = readings.slow.lasting or held.points[0][0] >= readings.slow.began - LATE
        if not came and now - before < LEAST_USE:
            continue
        name = readings.commands.get(pid, "")
        who = f"process {pid} ({name})" if name else f"process {pid}"
        used = f" and uses {percent(now)} of it" if use else f" and holds {byte_size(held.points[-1][1])} of it"
        text = f"{who}, which is not part of the training, {'runs' if came else 'ran already'} on GPU {gpu}{used}"
        # Two processes share a GPU in turns.
        share = min(1.0, (now - before if use else 0.5) / readings.slow.lost)
        yield SlowDownCause("gpu_neighbour", text, share, level([before] * 4, now) if use else None)


def _use(readings: Readings, series: list[Resource]) -> tuple[float, float]:
    """Return the mean utilization by a process before the slow-down and during it."""
    points = [point for one in series for point in one.points]
    before = [value for time, value in points if time < readings.slow.began - LATE]
    during = [value for time, value in points if time >= readings.slow.began - LATE]
    return sum(before) / max(1, len(before)), sum(during) / max(1, len(during))


def _errors(readings: Readings) -> Iterator[SlowDownCause]:
    for labels, text in _recent_xids(readings):
        yield SlowDownCause("gpu_xid", f"GPU {labels['gpu']} had {text}", None)
    for family, noun in ERRORS.items():
        for labels, errors in readings.of(family):
            # Corrected errors come by the thousand and cost nothing.
            if labels.get("kind") != "corrected" and errors.rose(0.0) and not errors.usual:
                kind = " ".join(labels[name] for name in ("kind", "error", "cause") if name in labels)
                text = f"GPU {labels['gpu']} has new {noun}" + (f" ({kind})" if kind else "")
                yield SlowDownCause("gpu_errors", text, None, errors)


def _recent_xids(readings: Readings) -> Iterator[tuple[Mapping[str, str], str]]:
    gpus = {gpu for rank in readings.ranks for gpu in rank.gpus}
    for one in readings.series(gpu_families.XID_LAST):
        newest = one.points[-1][1]
        if one.labels.get("gpu") in gpus and readings.slow.began - LATE <= newest <= readings.slow.ended + LATE:
            yield one.labels, f"the error Xid {one.labels.get('xid', '?')}"
