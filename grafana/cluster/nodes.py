"""All nodes in one list, and how busy they are."""

from __future__ import annotations

from grafana.board import Row
from grafana.own.daemons import UP
from grafana.panels import Query, above, below, lines, link, texts
from grafana.tables import Text, Value, joined

from trackside_daemon.alerts.rules.builtin.disk import NOT_SHM
from trackside_daemon.alerts.settings import ThresholdsSection

LIMITS = ThresholdsSection()
CPU = "trackside_host_cpu_seconds_total"


def row() -> Row:
    """The list, and means of the GPUs."""
    return Row("Nodes", _list(), _work(), _scarce())


def _of_node(expr: str, operation: str = "max") -> str:
    return f"{operation} by (instance) ({expr})"


def _list() -> object:
    here = "${__value.raw:percentencode}"
    to = [link("Its GPUs", "trackside-gpus", instance=here), link("Its daemon", "trackside-itself", instance=here)]
    lost = _of_node("trackside_gpu_up{HERE} == bool 0", "sum")
    alerts = _of_node('trackside_alert_firing{HERE, severity!="info"}', "sum")
    return joined(
        "All nodes",
        "Each node as it is now, those with alerts first. A colour is where its alert begins: GpuLost, HostMemoryPressure, "
        "DiskFilling. Click a node for its GPUs.",
        [
            Text("Node", "instance", to),
            Text("Daemon", "version", expr="max by (instance, version) (trackside_build_info{HERE})"),
        ],
        [
            Value("State", _of_node(UP), mappings=texts({0: ("down", "red"), 1: ("up", "green")})),
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
    idle, every = (
        _of_node(f"rate({CPU}{{HERE{chosen}}}[$__rate_interval])", "sum") for chosen in (', mode=~"idle|iowait"', "")
    )
    return f"1 - {idle} / {every}"


def _memory() -> str:
    return "trackside_host_memory_available_bytes{HERE} / trackside_host_memory_bytes{HERE}"


def _disk() -> str:
    """Of the fullest file system that can be written to."""
    there = f"trackside_host_filesystem_avail_bytes{{HERE, {NOT_SHM[0].promql()}}}"
    share = f"{there} / (trackside_host_filesystem_size_bytes{{HERE}} > 0)"
    return _of_node(f"{share} unless trackside_host_filesystem_readonly{{HERE}} == 1", "min")


def _work() -> object:
    means = {
        "utilization: some kernel ran": "trackside_gpu_utilization_ratio{HERE}",
        "SMs active": "trackside_gpu_sm_active_ratio{HERE}",
        "tensor cores active": "trackside_gpu_tensor_active_ratio{HERE}",
    }
    return lines(
        "Work of the GPUs",
        "Means of all GPUs of the chosen nodes; the SMs and tensor cores of Hopper and later. A wide gap below utilization is "
        "small kernels, waiting, or no half precision: see the dashboard GPUs.",
        "percentunit",
        *(Query(f"avg({series})", name) for name, series in means.items()),
        least=0,
        most=1,
        links=[link("The GPUs", "trackside-gpus", "instance")],
    )


def _scarce() -> object:
    return lines(
        "Nodes with the least memory",
        "Share of the host's memory that is available, of the ten nodes with the least. Below the line it is "
        "HostMemoryPressure: the OOM killer is near.",
        "percentunit",
        Query(f"bottomk(10, {_of_node(_memory())})", "{{instance}}"),
        levels=below(LIMITS.host_memory_ratio, "red"),
        least=0,
        most=1,
    )
