"""Causes that the machine's series show: GPUs that were idle, memory pressure, limits of the CPU, slow storage."""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from trackside_daemon.diagnosis.causes import LEAST_SHARE, Cause
from trackside_daemon.diagnosis.ledger import Slowed
from trackside_daemon.model.text import duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trackside_daemon.diagnosis.facts import Facts
    from trackside_daemon.history.read.resources import Resource

UTILIZATION = "trackside_gpu_utilization_ratio"
CLOCK = "trackside_gpu_clock_hertz"
CLOCK_LIMIT = "trackside_gpu_clock_limit_active"
RANK_OF_GPU = "trackside_gpu_rank_info"
THROTTLED = "trackside_cgroup_cpu_throttled_seconds_total"
SWAPPED_IN = "trackside_host_swap_in_pages_total"
MEMORY_STALLED = "trackside_host_pressure_memory_stalled_seconds_total"
IO_STALLED = "trackside_host_pressure_io_stalled_seconds_total"
FAMILIES = (UTILIZATION, CLOCK, CLOCK_LIMIT, THROTTLED, SWAPPED_IN, MEMORY_STALLED, IO_STALLED)

HOT = frozenset(("hw_slowdown", "hw_thermal", "hw_power_brake", "sw_thermal"))  # limits that are a fault, not a setting
IDLE = 0.01  # mean utilization below which a GPU did nothing
BUSY = 0.1  # mean utilization from which a GPU trained


def throttled(facts: Facts) -> list[Slowed]:
    """Return the times in which a limit held a GPU's SM clock down, with the share of the clock that was lost.

    Of several GPUs the one that lost most counts, because the others wait for it.
    """
    clocks = [clock for clock in facts.of(CLOCK) if clock.labels.get("domain") == "sm"]
    by_gpu = [list(_held_down(clock, facts.of(CLOCK_LIMIT))) for clock in clocks]
    return max(by_gpu, key=lambda held: sum((one.ended - one.began) * one.share for one in held), default=[])


def _held_down(clock: Resource, limits: Iterable[Resource]) -> Iterator[Slowed]:
    """Yield the times in which a GPU's clock was below its median of the other times, because of a fault."""
    held = {
        moment
        for limit in limits
        if limit.labels.get("uuid") == clock.labels.get("uuid") and limit.labels.get("reason") in HOT
        for moment, active in limit.points
        if active
    }
    free = [value for moment, value in clock.points if moment not in held]
    usual = median(free) if free else 0.0
    for (began, _), (ended, value) in pairwise(clock.points):
        if ended in held and value < usual:
            yield Slowed("throttled", began, ended, 1 - value / usual)


def resource_causes(facts: Facts) -> Iterator[Cause]:
    """Yield the causes that the machine's series show."""
    yield from _idle_gpus(facts)
    yield from _waits(facts)


def _idle_gpus(facts: Facts) -> Iterator[Cause]:
    means = {use.labels.get("gpu", "?"): use.mean for use in facts.of(UTILIZATION)}
    idle = sorted(gpu for gpu, mean in means.items() if mean < IDLE)
    if not idle or not any(mean >= BUSY for mean in means.values()):
        return
    which = f"GPU {idle[0]}" if len(idle) == 1 else f"GPUs {', '.join(idle)}"
    hours = facts.wall * len(idle) / 3600
    yield Cause(
        "idle_gpu",
        f"{which} did nothing all the time: {hours:.2g} GPU hours",
        None,
        None,
        None,
        tuple(f"mean utilization of GPU {gpu}: {mean:.0%}" for gpu, mean in sorted(means.items())),
        "start a rank on it, or ask for fewer GPUs",
        UTILIZATION,
    )


_WAITS = (
    (
        MEMORY_STALLED,
        "memory_pressure",
        "all tasks of the machine waited for memory",
        "use fewer DataLoader workers, or ask for more memory; turn swap off",
    ),
    (
        IO_STALLED,
        "slow_storage",
        "all tasks of the machine waited for the storage",
        "copy the data to local storage, or read larger files in sequence",
    ),
    (
        THROTTLED,
        "cpu_limit",
        "the CPU limit of the cgroup kept tasks from running",
        "raise the CPU limit, or use fewer DataLoader workers and threads",
    ),
)


def _waits(facts: Facts) -> Iterator[Cause]:
    """Yield the waits that the kernel counted. They overlap with the ledger's accounts, so they have no seconds of their own."""
    for family, name, happened, advice in _WAITS:
        seconds = max((series.increase for series in facts.of(family)), default=0.0)
        if seconds < 5 * LEAST_SHARE * facts.wall or not seconds:
            continue
        swapped = sum(series.increase for series in facts.of(SWAPPED_IN)) if name == "memory_pressure" else 0.0
        more = (f"pages read back from swap: {swapped:,.0f}",) if swapped else ()
        summary = f"{happened}: {duration(seconds)}, a part of the time above"
        yield Cause(name, summary, None, None, None, (f"{family}: +{seconds:.1f}", *more), advice, family)
