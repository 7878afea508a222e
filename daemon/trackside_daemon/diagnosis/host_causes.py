"""Causes on the host: memory and storage that tasks wait for, CPU limits and other programs on the CPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.diagnosis.causes import Cause, Evidence, alert_evidence, series_evidence
from trackside_daemon.model.families import cgroup, host, process, training
from trackside_daemon.model.text import byte_size, duration, number

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trackside_daemon.diagnosis.causes import Pools
    from trackside_daemon.diagnosis.facts import Facts
    from trackside_daemon.history.read.resources import Resource
    from trackside_daemon.model.metric import Metric

LEAST_SHARE = 0.02  # pressure below this share of the time is that of any machine
SWAPPED = 1000  # pages read from swap by which memory pressure is called swapping
FAULTS = 100.0  # major page faults per second that slow a process down
PAGE = 4096


def host_causes(facts: Facts, pools: Pools) -> Iterator[Cause]:
    """Yield the causes on the host. They draw from the accounts in which the training waits for the host."""
    yield from _memory(facts, pools)
    yield from _storage(facts, pools)
    yield from _cpu_limit(facts, pools)
    yield from _contention(facts, pools)
    yield from _first_batches(facts, pools)
    yield from _page_faults(facts)


def _stalled(facts: Facts, resource: str, family: Metric) -> tuple[float, Metric]:
    """Return the seconds in which all tasks waited for a resource, and the series: those of the run's cgroup, if known."""
    own = facts.cgroups(cgroup.STALLED, resource=resource)
    return _most(own or facts.of(family)), cgroup.STALLED if own else family


def _most(counters: Sequence[Resource]) -> float:
    return max((counter.increase for counter in counters), default=0.0)


def _memory(facts: Facts, pools: Pools) -> Iterator[Cause]:
    seconds, family = _stalled(facts, "memory", host.MEMORY_STALLED)
    lost = pools.draw(seconds, "compute", "data", "checkpoint", "eval", least=LEAST_SHARE)
    if not lost:
        return
    pages = sum(counter.increase for counter in facts.of(host.SWAP_IN))
    swaps = pages >= SWAPPED
    happened = "the machine read memory back from swap" if swaps else "all tasks of the machine waited for memory"
    swapped = series_evidence(
        facts, f"pages read back from swap: {pages:,.0f}, {byte_size(pages * PAGE)}", host.SWAP_IN
    )
    cause = Cause(
        "swap" if swaps else "memory_pressure",
        happened,
        (
            *alert_evidence(facts, "HostMemoryPressure", "ContainerMemoryPressure", "HostMemoryLeak"),
            series_evidence(facts, f"{family.name}: +{duration(seconds)}", family),
            *([swapped] if swaps else []),
        ),
        "use fewer DataLoader workers, or ask for more memory; turn swap off",
        f"{family.name}, {host.SWAP_IN.name}",
    )
    yield pools.priced(cause, lost, 0.3)


def _storage(facts: Facts, pools: Pools) -> Iterator[Cause]:
    seconds, family = _stalled(facts, "io", host.IO_STALLED)
    lost = pools.draw(seconds, "data", "checkpoint", "eval", "compute", least=LEAST_SHARE)
    if not lost:
        return
    read, written = (sum(counter.increase for counter in facts.of(one)) for one in (host.DISK_READ, host.DISK_WRITTEN))
    rates = f"disks read {byte_size(read / facts.wall)}/s and wrote {byte_size(written / facts.wall)}/s"
    cause = Cause(
        "slow_storage",
        "all tasks waited for the storage",
        (
            *alert_evidence(facts, "IoBottleneck", "FilesystemDead", "DataLoaderBottleneck"),
            series_evidence(facts, f"{family.name}: +{duration(seconds)}", family),
            series_evidence(facts, rates, host.DISK_READ),
        ),
        "copy the data to local storage, or read larger files in sequence; write checkpoints to local storage first",
        family.name,
    )
    yield pools.priced(cause, lost, 0.0)


def _cpu_limit(facts: Facts, pools: Pools) -> Iterator[Cause]:
    """Yield the loss by a CPU limit L: tasks that would use D CPUs are throttled for D - L seconds a second."""
    limits = {one.labels.get("cgroup"): one.mean for one in facts.cgroups(cgroup.CPU_LIMIT)}
    for counter in facts.cgroups(cgroup.THROTTLED):
        throttled = counter.increase / facts.wall if facts.wall else 0.0
        limit = limits.get(counter.labels.get("cgroup"), 1.0)
        lost = pools.draw(facts.wall * throttled / (limit + throttled), "data", "compute", least=LEAST_SHARE)
        if not lost:
            continue
        cause = Cause(
            "cpu_limit",
            f"the CPU limit of {limit:.3g} CPUs kept tasks from running",
            (
                *alert_evidence(facts, "CpuSaturated"),
                series_evidence(
                    facts, f"{cgroup.THROTTLED.name}: +{duration(counter.increase)} over all CPUs", cgroup.THROTTLED
                ),
            ),
            "raise the CPU limit, or use fewer DataLoader workers and threads",
            cgroup.THROTTLED.name,
        )
        yield pools.priced(cause, lost, 0.0)


def _contention(facts: Facts, pools: Pools) -> Iterator[Cause]:
    own = facts.processes()
    waits = [counter for counter in facts.of(process.CPU_WAIT) if counter.labels.get("pid") in own]
    seconds = _most(waits)
    lost = pools.draw(seconds, "compute", least=LEAST_SHARE)
    if lost:
        cause = Cause(
            "cpu_contention",
            "the training's main thread waited for a CPU that others used",
            (series_evidence(facts, f"{process.CPU_WAIT.name}: +{duration(seconds)}", process.CPU_WAIT),),
            "give the job CPUs of its own; use fewer threads (OMP_NUM_THREADS) and DataLoader workers",
            process.CPU_WAIT.name,
        )
        yield pools.priced(cause, lost, 0.0)


def _first_batches(facts: Facts, pools: Pools) -> Iterator[Cause]:
    """Yield the waits for the first batches of epochs, while the loader starts its workers."""
    waited = sum(span.account.first_wait for span in facts.spans) / facts.ranks
    lost = pools.draw(waited, "data")
    if lost:
        cause = Cause(
            "first_batches",
            "each epoch began with a wait for its first batch",
            (
                *alert_evidence(facts, "DataLoaderBottleneck"),
                Evidence(f"waits for first batches: {duration(waited)} a rank", facts.api),
            ),
            "persistent_workers=True keeps the workers between epochs; longer epochs have fewer starts",
            training.FIRST_WAIT.name,
        )
        yield pools.priced(cause, lost, 0.5)


def _page_faults(facts: Facts) -> Iterator[Cause]:
    own = facts.processes()
    faults = _most([counter for counter in facts.of(process.MAJOR_FAULTS) if counter.labels.get("pid") in own])
    rate = faults / facts.wall if facts.wall else 0.0
    if rate >= FAULTS:
        yield Cause(
            "page_faults",
            f"the training read {number(round(rate))} pages per second from disk on page faults, at a cost that is not measured",
            (series_evidence(facts, f"{process.MAJOR_FAULTS.name}: +{faults:,.0f}", process.MAJOR_FAULTS),),
            "keep memory-mapped data in memory or on local storage; ask for more memory",
            process.MAJOR_FAULTS.name,
        )
