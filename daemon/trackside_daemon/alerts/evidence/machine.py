"""Processes of the training by the resources that they use, and the resources of the host and of their cgroups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trackside_daemon.model.families import cgroup, daemon
from trackside_daemon.model.families import host as host_families
from trackside_daemon.model.families import process as process_families
from trackside_daemon.model.metric import json_number

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trackside_daemon.alerts.evidence.sources import Case
    from trackside_daemon.collectors.process.process import Process
    from trackside_daemon.model.metric import Metric

PROCESSES = 8
CGROUPS = 8

APART = 2.0  # seconds between two readings of counters whose difference is evidence

_HOST = (
    *(host_families.MEMORY, host_families.MEMORY_AVAILABLE, host_families.MEMINFO["AnonPages"]),
    *(host_families.MEMINFO["Shmem"], host_families.MEMINFO["Cached"], host_families.MEMINFO["Dirty"]),
    *(host_families.MEMINFO["SwapTotal"], host_families.SWAP_USED),
)
_CGROUP = (
    *(cgroup.LIMIT, cgroup.LIMIT_USED, cgroup.USED, cgroup.PEAK, cgroup.ANONYMOUS, cgroup.SHMEM, cgroup.OOM_KILLS),
    *(cgroup.CPU_LIMIT, cgroup.THROTTLED_PERIODS, cgroup.PERIODS),
)
_IO = {"read_bytes": process_families.READ, "written_bytes": process_families.WRITTEN}


def memory(case: Case) -> dict[str, Any]:
    """Return the processes that use most memory, the largest first."""
    return _processes(case, case.sources.processes(), lambda process: process.resident_bytes, {})


def cpu(case: Case) -> dict[str, Any]:
    """Return the processes that use most CPU time, by the CPUs used in the last seconds."""
    before = {(process.pid, process.started): process.cpu_seconds for process in case.sources.processes()}
    # The counters are as of a tick, so the time between two ticks counts and not the pause.
    began = _last_tick(case)
    case.sources.pause(APART)
    seconds = _last_tick(case) - began
    processes = case.sources.processes()
    if seconds <= 0:
        case.missing.append(f"processes: no new sample within {APART:g} s, so they are ordered by total CPU time")
        return _processes(case, processes, lambda process: process.cpu_seconds, {})
    used = {
        process.pid: max(0.0, process.cpu_seconds - before[process.pid, process.started]) / seconds
        for process in processes
        # A pid alone could belong to another process by now.
        if (process.pid, process.started) in before
    }
    return _processes(case, processes, lambda process: used.get(process.pid, 0.0), {"cpus": used})


def io(case: Case) -> dict[str, Any]:
    """Return the ranks that read and write most, in bytes per second over the last seconds."""
    before, began = _io_bytes(case), _last_tick(case)
    case.sources.pause(APART)
    after, seconds = _io_bytes(case), _last_tick(case) - began
    if seconds <= 0 or not any(after.values()):
        case.missing.append(
            "processes: their reads and writes are unknown; the kernel shows them only to the same user"
        )
        return {}
    rates = {
        f"{name}_per_second": {
            pid: max(0.0, value - before[name][pid]) / seconds for pid, value in values.items() if pid in before[name]
        }
        for name, values in after.items()
    }
    ranks = [process for process in case.sources.processes() if process.role == "rank"]
    return _processes(case, ranks, lambda rank: sum(rate.get(rank.pid, 0.0) for rate in rates.values()), rates)


def host(case: Case) -> dict[str, Any]:
    """Return memory and swap of the host, in bytes."""
    values = {
        _short(metric): json_number(value)
        for metric, series in zip(_HOST, case.sources.state.values(case.now, *_HOST), strict=True)
        if isinstance(value := series.get(()), float)
    }
    return {"host": values} if values else {}


def cgroups(case: Case) -> dict[str, Any]:
    """Return limits and use of the cgroups of the training, by path."""
    evidence: dict[str, dict[str, Any]] = {}
    for metric, series in zip(_CGROUP, case.sources.state.values(case.now, *_CGROUP), strict=True):
        for labels, value in series.items():
            matches = case.alert.labels.get("cgroup", labels[0]) == labels[0]
            if matches and isinstance(value, float) and (labels[0] in evidence or len(evidence) < CGROUPS):
                evidence.setdefault(labels[0], {})[_short(metric)] = json_number(value)
    return {"cgroups": evidence} if evidence else {}


def _processes(
    case: Case,
    processes: Sequence[Process],
    order: Callable[[Process], float],
    more: Mapping[str, Mapping[int, float]],
) -> dict[str, Any]:
    """Return the largest *processes* by *order*, with *more* values by name and pid."""
    if not processes:
        case.missing.append("processes: this machine has no process of a training now")
        return {}
    largest = sorted(processes, key=order, reverse=True)[:PROCESSES]
    return {
        "processes": [
            {
                "pid": process.pid,
                "role": process.role,
                "command": process.comm,
                "run": process.run,
                "rank": process.rank,
                "resident_bytes": process.resident_bytes,
                "cpu_seconds": round(process.cpu_seconds, 2),
                **{name: round(values[process.pid], 2) for name, values in more.items() if process.pid in values},
            }
            for process in largest
        ]
    }


def _io_bytes(case: Case) -> dict[str, dict[int, float]]:
    """Return the bytes read and written so far, by name and pid."""
    counters = case.sources.state.values(case.now, *_IO.values())
    return {
        name: {int(labels[0]): value for labels, value in series.items() if isinstance(value, float)}
        for name, series in zip(_IO, counters, strict=True)
    }


def _last_tick(case: Case) -> float:
    """Return the Unix time at which the processes were last read; 0 if never."""
    (times,) = case.sources.state.values(case.now, daemon.COLLECTOR_LAST_SUCCESS)
    value = times.get(("process",))
    return value if isinstance(value, float) else 0.0


def _short(metric: Metric) -> str:
    """Return the name without its subject: ``memory_bytes``."""
    return metric.name.split("_", 2)[2]
