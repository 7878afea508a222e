"""Latest readings of the GPUs of an alert, the processes on them, and the ranks that train on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trackside_daemon.model.families import gpu as gpu_families
from trackside_daemon.model.families import process as process_families
from trackside_daemon.model.metric import json_number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trackside_daemon.alerts.evidence.sources import Case
    from trackside_daemon.model.metric import Distribution, Metric

    Family = Mapping[tuple[str, ...], float | Distribution]

GPUS = 8
PROCESSES = 8
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


def gpus(case: Case) -> dict[str, Any]:
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


def xids(case: Case) -> dict[str, Any]:
    """Return the Xid errors of all GPUs in the last ten minutes."""
    (times,) = case.sources.state.values(case.now, gpu_families.XID_LAST)
    recent = [
        {"gpu": labels[0], "xid": labels[2], "time": value}
        for labels, value in times.items()
        if isinstance(value, float) and case.wall - value <= XID_SECONDS
    ]
    return {"xids": recent[-PROCESSES:]} if recent else {}


def _selected_gpus(case: Case, families: Mapping[Metric, Family]) -> list[str]:
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
