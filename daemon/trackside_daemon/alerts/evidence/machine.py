"""The training's processes by what they take, and what the host and their cgroups have left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trackside_daemon.model.metric import json_number

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trackside_daemon.alerts.evidence.sources import Case
    from trackside_daemon.collectors.process.process import Process

PROCESSES = 8
CGROUPS = 8

APART = 2.0
"""Seconds between two looks at counters, of which the difference is told."""

_HOST = (
    *("memory_bytes", "memory_available_bytes", "memory_anonymous_bytes", "memory_shmem_bytes", "memory_cached_bytes"),
    *("memory_dirty_bytes", "swap_bytes", "swap_used_bytes"),
)
_CGROUP = (
    *("memory_limit_bytes", "memory_limit_used_bytes", "memory_used_bytes", "memory_peak_bytes"),
    *("memory_anonymous_bytes", "memory_shmem_bytes", "oom_kills_total"),
    *("cpu_limit_cores", "cpu_throttled_periods_total", "cpu_periods_total"),
)
_IO = {"read_bytes": "trackside_process_read_bytes_total", "written_bytes": "trackside_process_write_bytes_total"}


def memory(case: Case) -> dict[str, Any]:
    """The processes that hold most memory, the greatest first."""
    return _processes(case, case.sources.seen(), lambda one: one.resident_bytes, {})


def cpu(case: Case) -> dict[str, Any]:
    """The processes that compute most, by CPUs used in the last seconds."""
    before = {(one.pid, one.started): one.cpu_seconds for one in case.sources.seen()}
    began = _ticked(case)
    case.sources.pause(APART)
    seconds = _ticked(case) - began
    seen = case.sources.seen()
    if seconds <= 0:
        case.missing.append(f"processes: no new sample in {APART:g} s, so they are told by their CPU time so far")
        return _processes(case, seen, lambda one: one.cpu_seconds, {})
    used = {
        one.pid: max(0.0, one.cpu_seconds - before[one.pid, one.started]) / seconds
        for one in seen
        if (one.pid, one.started) in before
    }
    more = {"cpus": used}
    return _processes(case, seen, lambda one: used.get(one.pid, 0.0), more)


def io(case: Case) -> dict[str, Any]:
    """The ranks that read and write most, in bytes a second of the last seconds."""
    before, began = _moved(case), _ticked(case)
    case.sources.pause(APART)
    after, seconds = _moved(case), _ticked(case) - began
    if seconds <= 0 or not any(after.values()):
        case.missing.append("processes: what they read and write is not known; the kernel tells it of one's own alone")
        return {}
    rates = {
        f"{name}_per_second": {
            pid: max(0.0, value - before[name][pid]) / seconds for pid, value in found.items() if pid in before[name]
        }
        for name, found in after.items()
    }
    ranks = [one for one in case.sources.seen() if one.role == "rank"]
    return _processes(case, ranks, lambda one: sum(rate.get(one.pid, 0.0) for rate in rates.values()), rates)


def host(case: Case) -> dict[str, Any]:
    """Memory and swap of the host, in bytes."""
    names = {f"trackside_host_{name}": name for name in _HOST}
    found = case.sources.state.named(case.now, names)
    values = {
        short: json_number(value)
        for name, short in names.items()
        if name in found and isinstance(value := found[name][1].get(()), float)
    }
    return {"host": values} if values else {}


def cgroups(case: Case) -> dict[str, Any]:
    """Limits and use of the cgroups that training runs in, by path."""
    names = {f"trackside_cgroup_{name}": name for name in _CGROUP}
    found = case.sources.state.named(case.now, names)
    told: dict[str, dict[str, Any]] = {}
    for name, short in names.items():
        for labels, value in found[name][1].items() if name in found else ():
            wanted = case.alert.labels.get("cgroup", labels[0]) == labels[0]
            if wanted and isinstance(value, float) and (labels[0] in told or len(told) < CGROUPS):
                told.setdefault(labels[0], {})[short] = json_number(value)
    return {"cgroups": told} if told else {}


def _processes(
    case: Case, seen: Sequence[Process], order: Callable[[Process], float], more: Mapping[str, Mapping[int, float]]
) -> dict[str, Any]:
    """The greatest by *order*; *more* values of them by name and pid."""
    if not seen:
        case.missing.append("processes: no training's process is seen here now")
        return {}
    greatest = sorted(seen, key=order, reverse=True)[:PROCESSES]
    return {
        "processes": [
            {
                "pid": one.pid,
                "role": one.role,
                "command": one.comm,
                "run": one.run,
                "rank": one.rank,
                "resident_bytes": one.resident_bytes,
                "cpu_seconds": round(one.cpu_seconds, 2),
                **{name: round(values[one.pid], 2) for name, values in more.items() if one.pid in values},
            }
            for one in greatest
        ]
    }


def _moved(case: Case) -> dict[str, dict[int, float]]:
    found = case.sources.state.named(case.now, set(_IO.values()))
    return {
        short: {int(labels[0]): value for labels, value in found[name][1].items() if isinstance(value, float)}
        if name in found
        else {}
        for short, name in _IO.items()
    }


def _ticked(case: Case) -> float:
    """When the processes were seen last, in Unix seconds."""
    name = "trackside_collector_last_success_timestamp_seconds"
    found = case.sources.state.named(case.now, {name})
    value = found[name][1].get(("process",)) if name in found else None
    return value if isinstance(value, float) else 0.0
