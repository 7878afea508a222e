"""The last readings of the GPU that an alert is about, the processes on it, and the ranks that train on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trackside_daemon.collectors.process.ranks import PROCESS_INFO, RANK_INFO
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
    *("up", "utilization_ratio", "temperature_celsius", "thermal_margin_celsius", "power_watts", "power_limit_watts"),
    *("clock_hertz", "clock_max_hertz", "performance_state", "memory_bytes", "memory_used_bytes"),
    *("ecc_errors_total", "remapped_rows_total", "row_remap_pending", "row_remap_failed", "recovery_action"),
    *("nvlink_links", "nvlink_links_up", "nvlink_errors_total", "xid_errors_total"),
)
_OF_THESE = {
    "thermal_margin_celsius": ("slowdown",),
    "power_limit_watts": ("enforced", "default"),
    **dict.fromkeys(("clock_hertz", "clock_max_hertz"), ("sm", "memory")),
}
"""Of families with many series those that are told; of counters those that have counted."""

_LIMITED = "trackside_gpu_clock_limit_active"
_HELD = "trackside_gpu_process_memory_bytes"
_XIDS = "trackside_gpu_xid_last_timestamp_seconds"


def gpus(case: Case) -> dict[str, Any]:
    """By number: readings, what keeps the clocks down, processes, ranks."""
    names = {f"trackside_gpu_{name}": name for name in _READINGS}
    found = case.sources.state.named(case.now, {*names, _LIMITED, _HELD, RANK_INFO.name, PROCESS_INFO.name})
    families = {name: values for name, (_, values) in found.items()}
    told = {}
    for gpu in _chosen(case, families):
        readings = {
            "".join([short, *(f" {label}" for label in labels[2:])]): json_number(value)
            for name, short in names.items()
            for labels, value in families.get(name, {}).items()
            if labels[0] == gpu and isinstance(value, float) and _is_told(short, labels[2:], value)
        }
        if readings:
            told[gpu] = {"readings": readings, **_around(gpu, families)}
    if not told:
        case.missing.append("gpus: nothing of it is on /metrics now")
        return {}
    return {"gpus": told, **xids(case)}


def xids(case: Case) -> dict[str, Any]:
    """The Xid errors of the last ten minutes, of every GPU."""
    found = case.sources.state.named(case.now, {_XIDS})
    recent = [
        {"gpu": labels[0], "xid": labels[2], "time": value}
        for labels, value in (found[_XIDS][1].items() if _XIDS in found else ())
        if isinstance(value, float) and case.wall - value <= XID_SECONDS
    ]
    return {"xids": recent[-PROCESSES:]} if recent else {}


def _chosen(case: Case, families: Mapping[str, Family]) -> list[str]:
    """The GPU in the alert's labels, else those of its run."""
    if "gpu" in case.alert.labels:
        return [case.alert.labels["gpu"]]
    whose = families.get(RANK_INFO.name, {})
    return sorted({labels[0] for labels in whose if labels[2] == case.run}, key=lambda gpu: (len(gpu), gpu))[:GPUS]


def _is_told(name: str, labels: tuple[str, ...], value: float) -> bool:
    if name in _OF_THESE:
        return labels[0] in _OF_THESE[name]
    return bool(value) or not name.endswith("_total")


def _around(gpu: str, families: Mapping[str, Family]) -> dict[str, Any]:
    """What of it is no reading."""
    limits = [labels[2] for labels, on in families.get(_LIMITED, {}).items() if labels[0] == gpu and on == 1.0]
    ranks = [f"rank {labels[3]} of {labels[2]}" for labels in families.get(RANK_INFO.name, {}) if labels[0] == gpu]
    pid, comm = PROCESS_INFO.labels.index("pid"), PROCESS_INFO.labels.index("comm")
    commands = {labels[pid]: labels[comm] for labels in families.get(PROCESS_INFO.name, {})}
    held: list[dict[str, Any]] = [
        {"pid": int(labels[2]), "command": commands.get(labels[2], ""), "memory_bytes": value}
        for labels, value in families.get(_HELD, {}).items()
        if labels[0] == gpu and isinstance(value, float) and labels[2].isdecimal()
    ]
    held.sort(key=lambda one: one["memory_bytes"], reverse=True)
    told = {"clocks_kept_down_by": limits, "ranks": ranks[:PROCESSES], "processes": held[:PROCESSES]}
    return {name: value for name, value in told.items() if value}
