"""Panels about all nodes."""

from __future__ import annotations

from grafana.board import Row
from grafana.daemon.overview import UP
from grafana.panels import Query, above, below, lines, link, value_texts
from grafana.tables import Text, Value, joined_table

from trackside_daemon.alerts.rules.builtin.machine import NOT_SHM
from trackside_daemon.alerts.settings import ThresholdsSection

LIMITS = ThresholdsSection()
CPU = "trackside_host_cpu_seconds_total"


def row() -> Row:
    """Return the row with the list of nodes, GPU activity and memory."""
    return Row("Nodes", _list(), _activity(), _least_memory())


def _of_node(expr: str, operation: str = "max") -> str:
    return f"{operation} by (instance) ({expr})"


def _list() -> object:
    value = "${__value.raw:percentencode}"
    links = [
        link("GPUs of this node", "trackside-gpus", instance=value),
        link("Daemon of this node", "trackside-itself", instance=value),
    ]
    lost = _of_node("trackside_gpu_up{HERE} == bool 0", "sum")
    alerts = _of_node('trackside_alert_firing{HERE, severity!="info"}', "sum")
    return joined_table(
        "All nodes",
        "The current state of each node, those with alerts first. Colors start at the thresholds of the alerts GpuLost, "
        "HostMemoryPressure and DiskFilling. Click a node for its GPUs.",
        [
            Text("Node", "instance", links),
            Text("Daemon", "version", expr="max by (instance, version) (trackside_build_info{HERE})"),
        ],
        [
            Value("State", _of_node(UP), mappings=value_texts({0: ("down", "red"), 1: ("up", "green")})),
            Value("GPUs", _of_node("trackside_gpus_visible{HERE}", "sum")),
            Value("GPUs lost", lost, levels=above(1, "red")),
            Value(
                "GPU utilization", _of_node("trackside_gpu_utilization_ratio{HERE}", "avg"), "percentunit", decimals=0
            ),
            Value("CPU busy", _cpu(), "percentunit", decimals=0),
            Value(
                "Memory available",
                _of_node(_memory()),
                "percentunit",
                below(LIMITS.host_memory_ratio, "red"),
                decimals=0,
            ),
            Value("Disk free", _disk(), "percentunit", below(LIMITS.disk_ratio), decimals=0),
            Value("Alerts", alerts, levels=above(1, "red")),
        ],
        sort="Alerts",
        width=24,
        height=9,
    )


def _cpu() -> str:
    idle, total = (
        _of_node(f"rate({CPU}{{HERE{matcher}}}[$__rate_interval])", "sum") for matcher in (', mode=~"idle|iowait"', "")
    )
    return f"1 - {idle} / {total}"


def _memory() -> str:
    return "trackside_host_memory_available_bytes{HERE} / trackside_host_memory_bytes{HERE}"


def _disk() -> str:
    """Return the query for the fullest writable file system."""
    available = f"trackside_host_filesystem_avail_bytes{{HERE, {NOT_SHM[0].promql()}}}"
    share = f"{available} / (trackside_host_filesystem_size_bytes{{HERE}} > 0)"
    return _of_node(f"{share} unless trackside_host_filesystem_readonly{{HERE}} == 1", "min")


def _activity() -> object:
    means = {
        "utilization: a kernel ran": "trackside_gpu_utilization_ratio{HERE}",
        "SMs active": "trackside_gpu_sm_active_ratio{HERE}",
        "tensor cores active": "trackside_gpu_tensor_active_ratio{HERE}",
    }
    return lines(
        "GPU activity",
        "Means over all GPUs of the selected nodes. SM and tensor core activity are available on Hopper and later. A wide gap below "
        "utilization means small kernels, waiting, or no half precision; see the dashboard GPUs.",
        "percentunit",
        *(Query(f"avg({series})", name) for name, series in means.items()),
        minimum=0,
        maximum=1,
        links=[link("GPUs", "trackside-gpus", "instance")],
    )


def _least_memory() -> object:
    return lines(
        "Nodes with the least memory",
        "Share of the host's memory that is available, for the ten nodes with the least. HostMemoryPressure fires below the line: "
        "the OOM killer is near.",
        "percentunit",
        Query(f"bottomk(10, {_of_node(_memory())})", "{{instance}}"),
        levels=below(LIMITS.host_memory_ratio, "red"),
        minimum=0,
        maximum=1,
    )
