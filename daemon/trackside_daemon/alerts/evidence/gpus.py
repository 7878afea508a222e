"""Latest readings of the GPUs of an alert, the processes on them, and the ranks that train on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trackside_daemon.model.families import gpu as gpu_families
from trackside_daemon.model.families import process as process_families
from trackside_daemon.model.metric import json_number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trackside_daemon.alerts.evidence.sources import Case
    from trackside_daemon.model.metric import Distribution

    Family = Mapping[tuple[str, ...], float | Distribution]

GPUS = 8
PROCESSES = 8
XID_SECONDS = 600.0

_READINGS = (
    "up",
    "utilization_ratio",
    "temperature_celsius",
    "thermal_margin_celsius",
    "power_watts",
    "power_limit_watts",
    "clock_hertz",
    "clock_max_hertz",
    "performance_state",
    "memory_bytes",
    "memory_used_bytes",
    "ecc_errors_total",
    "remapped_rows_total",
    "row_remap_pending",
    "row_remap_failed",
    "recovery_action",
    "pcie_link_generation",
    "pcie_link_width_lanes",
    "pcie_replays_total",
    "pcie_errors_total",
    "nvlink_links",
    "nvlink_links_up",
    "nvlink_errors_total",
    "xid_errors_total",
)
# Label values to include, for families with many series. Counters are included if they have counted anything.
_SELECTED = {
    "thermal_margin_celsius": ("slowdown",),
    "power_limit_watts": ("enforced", "default"),
    **dict.fromkeys(("clock_hertz", "clock_max_hertz"), ("sm", "memory")),
}

_CLOCK_LIMIT = "trackside_gpu_clock_limit_active"
_PROCESS_MEMORY = "trackside_gpu_process_memory_bytes"
_XIDS = "trackside_gpu_xid_last_timestamp_seconds"


def gpus(case: Case) -> dict[str, Any]:
    """Return for each GPU, by its number, the readings, the reasons for lower clocks, the processes and the ranks."""
    names = {f"trackside_gpu_{name}": name for name in _READINGS}
    named = case.sources.state.named(
        case.now,
        {*names, _CLOCK_LIMIT, _PROCESS_MEMORY, gpu_families.RANK_INFO.name, process_families.PROCESS_INFO.name},
    )
    families = {name: values for name, (_, values) in named.items()}
    evidence = {}
    for gpu in _selected_gpus(case, families):
        readings = {
            "".join([short, *(f" {label}" for label in labels[2:])]): json_number(value)
            for name, short in names.items()
            for labels, value in families.get(name, {}).items()
            if labels[0] == gpu and isinstance(value, float) and _is_included(short, labels[2:], value)
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
    named = case.sources.state.named(case.now, {_XIDS})
    recent = [
        {"gpu": labels[0], "xid": labels[2], "time": value}
        for labels, value in (named[_XIDS][1].items() if _XIDS in named else ())
        if isinstance(value, float) and case.wall - value <= XID_SECONDS
    ]
    return {"xids": recent[-PROCESSES:]} if recent else {}


def _selected_gpus(case: Case, families: Mapping[str, Family]) -> list[str]:
    """Return the GPU in the alert's labels, otherwise those of its run."""
    if "gpu" in case.alert.labels:
        return [case.alert.labels["gpu"]]
    infos = families.get(gpu_families.RANK_INFO.name, {})
    return sorted({labels[0] for labels in infos if labels[2] == case.run}, key=lambda gpu: (len(gpu), gpu))[:GPUS]


def _is_included(name: str, labels: tuple[str, ...], value: float) -> bool:
    if name in _SELECTED:
        return labels[0] in _SELECTED[name]
    # A counter at 0 is no evidence.
    return bool(value) or not name.endswith("_total")


def _context(gpu: str, families: Mapping[str, Family]) -> dict[str, Any]:
    """Return the reasons for lower clocks, the ranks and the processes of a GPU."""
    limits = [labels[2] for labels, on in families.get(_CLOCK_LIMIT, {}).items() if labels[0] == gpu and on == 1.0]
    ranks = [
        f"rank {labels[3]} of {labels[2]}"
        for labels in families.get(gpu_families.RANK_INFO.name, {})
        if labels[0] == gpu
    ]
    pid, comm = process_families.PROCESS_INFO.labels.index("pid"), process_families.PROCESS_INFO.labels.index("comm")
    commands = {labels[pid]: labels[comm] for labels in families.get(process_families.PROCESS_INFO.name, {})}
    processes: list[dict[str, Any]] = [
        {"pid": int(labels[2]), "command": commands.get(labels[2], ""), "memory_bytes": value}
        for labels, value in families.get(_PROCESS_MEMORY, {}).items()
        if labels[0] == gpu and isinstance(value, float) and labels[2].isdecimal()
    ]
    processes.sort(key=lambda process: process["memory_bytes"], reverse=True)
    context = {"clocks_kept_down_by": limits, "ranks": ranks[:PROCESSES], "processes": processes[:PROCESSES]}
    return {name: value for name, value in context.items() if value}
