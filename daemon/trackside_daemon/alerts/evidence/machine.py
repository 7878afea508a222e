"""The machine of an alert: its GPUs with the ranks on them, the processes of the training, and the resources of host and cgroups."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trackside_daemon.alerts.evidence.sources import AlertCase, Family
from trackside_daemon.collectors.process.process import TrainingProcess
from trackside_daemon.model.families import cgroup, daemon
from trackside_daemon.model.families import gpu as gpu_families
from trackside_daemon.model.families import host as host_families
from trackside_daemon.model.families import process as process_families
from trackside_daemon.model.metric import Metric, json_number

GPUS = 8
PROCESSES = 8
CGROUPS = 8

COUNTER_GAP_SECONDS = 2.0  # seconds between two readings of counters whose difference is evidence

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


XID_SECONDS = 600.0

_READINGS = (
    *(gpu_families.UP, gpu_families.UTILIZATION, gpu_families.TEMPERATURE, gpu_families.THERMAL_MARGIN),
    *(gpu_families.POWER, gpu_families.POWER_LIMIT, gpu_families.CLOCK, gpu_families.CLOCK_MAX),
    *(gpu_families.PERFORMANCE_STATE, gpu_families.MEMORY, gpu_families.MEMORY_USED, gpu_families.ECC_ERRORS),
    *(gpu_families.REMAPPED_ROWS, gpu_families.ROW_REMAP_PENDING, gpu_families.ROW_REMAP_FAILED),
    *(gpu_families.RECOVERY_ACTION, gpu_families.PCIE_LINK_GENERATION, gpu_families.PCIE_LINK_WIDTH),
    *(gpu_families.PCIE_REPLAYS, gpu_families.PCIE_ERRORS, gpu_families.NVLINK_LINKS, gpu_families.NVLINK_LINKS_UP),
    *(gpu_families.NVLINK_ERRORS, gpu_families.XID_ERRORS),
)
# Label values to include, for families with many series. Counters are included if they have counted anything.
_SELECTED = {
    gpu_families.THERMAL_MARGIN: ("slowdown",),
    gpu_families.POWER_LIMIT: ("enforced", "default"),
    **dict.fromkeys((gpu_families.CLOCK, gpu_families.CLOCK_MAX), ("sm", "memory")),
}
_CONTEXT = (
    gpu_families.CLOCK_LIMIT_ACTIVE,
    gpu_families.PROCESS_MEMORY,
    gpu_families.RANK_INFO,
    process_families.PROCESS_INFO,
)


def gpus(case: AlertCase) -> dict[str, Any]:
    """Return for each GPU, by its number, the readings, the reasons for lower clocks, the processes and the ranks."""
    metrics = (*_READINGS, *_CONTEXT)
    families = dict(zip(metrics, case.sources.state.values(case.now, *metrics), strict=True))
    evidence = {}
    for gpu in _selected_gpus(case, families):
        readings = {
            " ".join([metric.name.removeprefix(gpu_families.PREFIX), *labels[2:]]): json_number(value)
            for metric in _READINGS
            for labels, value in families[metric].items()
            if labels[0] == gpu and isinstance(value, float) and _is_included(metric, labels[2:], value)
        }
        if readings:
            evidence[gpu] = {"readings": readings, **_context(gpu, families)}
    if not evidence and case.run and "gpu" not in case.alert.labels:
        return {}  # the run trains on no GPU of this machine
    if not evidence:
        case.missing.append("gpus: /metrics has no values of the GPU now")
        return {}
    return {"gpus": evidence, **xids(case)}


def xids(case: AlertCase) -> dict[str, Any]:
    """Return the Xid errors of all GPUs in the last ten minutes."""
    (times,) = case.sources.state.values(case.now, gpu_families.XID_LAST)
    recent = [
        {"gpu": labels[0], "xid": labels[2], "time": value}
        for labels, value in times.items()
        if isinstance(value, float) and case.wall - value <= XID_SECONDS
    ]
    return {"xids": recent[-PROCESSES:]} if recent else {}


def _selected_gpus(case: AlertCase, families: Mapping[Metric, Family]) -> list[str]:
    """Return the GPU in the alert's labels, otherwise those of its run."""
    if "gpu" in case.alert.labels:
        return [case.alert.labels["gpu"]]
    infos = families[gpu_families.RANK_INFO]
    return sorted({labels[0] for labels in infos if labels[2] == case.run}, key=lambda gpu: (len(gpu), gpu))[:GPUS]


def _is_included(metric: Metric, labels: tuple[str, ...], value: float) -> bool:
    if metric in _SELECTED:
        return labels[0] in _SELECTED[metric]
    # A counter at 0 is no evidence.
    return bool(value) or metric.kind != "counter"


def _context(gpu: str, families: Mapping[Metric, Family]) -> dict[str, Any]:
    """Return the reasons for lower clocks, the ranks and the processes of a GPU."""
    limits = [
        labels[2] for labels, on in families[gpu_families.CLOCK_LIMIT_ACTIVE].items() if labels[0] == gpu and on == 1.0
    ]
    ranks = [f"rank {labels[3]} of {labels[2]}" for labels in families[gpu_families.RANK_INFO] if labels[0] == gpu]
    pid, comm = process_families.PROCESS_INFO.labels.index("pid"), process_families.PROCESS_INFO.labels.index("comm")
    commands = {labels[pid]: labels[comm] for labels in families[process_families.PROCESS_INFO]}
    processes: list[dict[str, Any]] = [
        {"pid": int(labels[2]), "command": commands.get(labels[2], ""), "memory_bytes": value}
        for labels, value in families[gpu_families.PROCESS_MEMORY].items()
        if labels[0] == gpu and isinstance(value, float) and labels[2].isdecimal()
    ]
    processes.sort(key=lambda process: process["memory_bytes"], reverse=True)
    context = {"clocks_kept_down_by": limits, "ranks": ranks[:PROCESSES], "processes": processes[:PROCESSES]}
    return {name: value for name, value in context.items() if value}


def memory(case: AlertCase) -> dict[str, Any]:
    """Return the processes that use most memory, the largest first."""
    return _processes(case, case.sources.processes(), lambda process: process.resident_bytes, {})


def cpu(case: AlertCase) -> dict[str, Any]:
    """Return the processes that use most CPU time, by the CPUs used in the last seconds."""
    before = {(process.pid, process.started): process.cpu_seconds for process in case.sources.processes()}
    # The counters are as of a tick, so the time between two ticks counts and not the pause.
    began = _last_tick(case)
    case.sources.pause(COUNTER_GAP_SECONDS)
    seconds = _last_tick(case) - began
    processes = case.sources.processes()
    if seconds <= 0:
        case.missing.append(
            f"processes: no new sample within {COUNTER_GAP_SECONDS:g} s, so they are ordered by total CPU time"
        )
        return _processes(case, processes, lambda process: process.cpu_seconds, {})
    used = {
        process.pid: max(0.0, process.cpu_seconds - before[process.pid, process.started]) / seconds
        for process in processes
        # A pid alone could belong to another process by now.
        if (process.pid, process.started) in before
    }
    return _processes(case, processes, lambda process: used.get(process.pid, 0.0), {"cpus": used})


def io(case: AlertCase) -> dict[str, Any]:
    """Return the ranks that read and write most, in bytes per second over the last seconds."""
    before, began = _io_bytes(case), _last_tick(case)
    case.sources.pause(COUNTER_GAP_SECONDS)
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


def host(case: AlertCase) -> dict[str, Any]:
    """Return memory and swap of the host, in bytes."""
    values = {
        _short(metric): json_number(value)
        for metric, series in zip(_HOST, case.sources.state.values(case.now, *_HOST), strict=True)
        if isinstance(value := series.get(()), float)
    }
    return {"host": values} if values else {}


def cgroups(case: AlertCase) -> dict[str, Any]:
    """Return limits and use of the cgroups of the training, by path."""
    evidence: dict[str, dict[str, Any]] = {}
    for metric, series in zip(_CGROUP, case.sources.state.values(case.now, *_CGROUP), strict=True):
        for labels, value in series.items():
            matches = case.alert.labels.get("cgroup", labels[0]) == labels[0]
            if matches and isinstance(value, float) and (labels[0] in evidence or len(evidence) < CGROUPS):
                evidence.setdefault(labels[0], {})[_short(metric)] = json_number(value)
    return {"cgroups": evidence} if evidence else {}


def _processes(
    case: AlertCase,
    processes: Sequence[TrainingProcess],
    order: Callable[[TrainingProcess], float],
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


def _io_bytes(case: AlertCase) -> dict[str, dict[int, float]]:
    """Return the bytes read and written so far, by name and pid."""
    counters = case.sources.state.values(case.now, *_IO.values())
    return {
        name: {int(labels[0]): value for labels, value in series.items() if isinstance(value, float)}
        for name, series in zip(_IO, counters, strict=True)
    }


def _last_tick(case: AlertCase) -> float:
    """Return the Unix time at which the processes were last read; 0 if never."""
    (times,) = case.sources.state.values(case.now, daemon.COLLECTOR_LAST_SUCCESS)
    value = times.get(("process",))
    return value if isinstance(value, float) else 0.0


def _short(metric: Metric) -> str:
    """Return the name without its subject: ``memory_bytes``."""
    return metric.name.split("_", 2)[2]
