"""Metric families of a GPU: names, help texts with the NVML call, and the bounds of plausible values.

Both ends of the worker's pipe read this table: the worker to drop implausible values, the collector to make samples.
The worker names a family by its short name, which is the metric's name without ``trackside_gpu_``.
"""

from typing import NamedTuple

from trackside_daemon.model.metric import Metric, define

PREFIX = "trackside_gpu_"

# Lowest and highest plausible values. They are below the numbers that drivers return for unknown values, 32 or 64 bits of
# ones, and below the more than 100 % that drivers have returned: NVIDIA/DCGM#199, dcgm-exporter#418.
_RATIO = (0.0, 1.001)
_FLAG = (0.0, 1.0)
_BYTES = (0.0, 2.0**50)
_WATTS = (0.0, 3000.0)
_HERTZ = (0.0, 1e11)
_COUNT = (0.0, 2.0**53)
_ERRORS = (0.0, 2.0**32 - 2)
_SECONDS = (0.0, 1e9)

# Traffic, and the cycles of all SMs, exceed within hours the 2**53 up to which a float counts exactly.
_TRAFFIC = (0.0, 1.8e19)


class BoundedMetric(NamedTuple):
    """A metric with its lowest and highest plausible value."""

    metric: Metric
    low: float
    high: float


FAMILIES: dict[str, BoundedMetric] = {}
"""The families that the worker reads, by their short names."""


def _gauge(name: str, bounds: tuple[float, float], description: str, *labels: str) -> Metric:
    metric = define(PREFIX + name, f"{description}; sampled at each tick.", "gpu", "uuid", *labels)
    FAMILIES[name] = BoundedMetric(metric, *bounds)
    return metric


def _counter(name: str, bounds: tuple[float, float], description: str, *labels: str) -> Metric:
    return _gauge(f"{name}_total", bounds, description, *labels)


_RATES = "nvmlDeviceGetUtilizationRates"
_MEMORY_INFO = "nvmlDeviceGetMemoryInfo_v2"
_FIELD = "nvmlDeviceGetFieldValues"
_GPM = "nvmlGpmMetricsGet (Hopper and later)"
_REMAPPED = "nvmlDeviceGetRemappedRows"
_PROCESS_LIST = "nvmlDeviceGetComputeRunningProcesses_v3"
_FABRIC = "nvmlDeviceGetGpuFabricInfoV"

UTILIZATION = _gauge("utilization_ratio", _RATIO, f"Fraction of time with a running kernel, from {_RATES}")
BUSY = _counter(
    "busy_seconds", _SECONDS, "Time with a running kernel, summed over the driver's samples, from nvmlDeviceGetSamples"
)
_gauge(
    "memory_controller_utilization_ratio",
    _RATIO,
    f"Fraction of time with reads or writes of device memory, from {_RATES}",
)
_gauge(
    "engine_utilization_ratio",
    _RATIO,
    "Fraction of time in which the engine (encoder, decoder, jpeg or ofa) was busy, from "
    "nvmlDeviceGetEncoderUtilization and its siblings",
    "engine",
)
_gauge("graphics_engine_active_ratio", _RATIO, f"Fraction of time in which the GPU had any work, from {_GPM}")
SM_ACTIVE = _gauge(
    "sm_active_ratio", _RATIO, f"Fraction of time in which an SM had at least one warp, mean over all SMs, from {_GPM}"
)
_gauge("sm_occupancy_ratio", _RATIO, f"Resident warps divided by the maximum that the SMs can hold, from {_GPM}")
TENSOR_ACTIVE = _gauge(
    "tensor_active_ratio", _RATIO, f"Fraction of time in which the tensor cores were busy, from {_GPM}"
)
PIPE_ACTIVE = _gauge(
    "pipe_active_ratio",
    _RATIO,
    f"Fraction of time in which the pipe was busy; pipes overlap, so do not add them, from {_GPM}",
    "pipe",
)
_gauge("dram_active_ratio", _RATIO, f"Device memory bandwidth in use divided by the maximum, from {_GPM}")
_counter("sm_cycles", _TRAFFIC, f"Cycles of all SMs since boot, from {_GPM}")
_counter("sm_active_cycles", _TRAFFIC, f"Cycles since boot in which an SM had at least one warp, from {_GPM}")
_counter("tensor_active_cycles", _TRAFFIC, f"Cycles since boot in which the tensor cores were busy, from {_GPM}")
_gauge("mma_stall_ratio", _RATIO, f"Fraction of time in which matrix instructions were stalled, from {_FIELD} 297")

MEMORY = _gauge("memory_bytes", _BYTES, f"Size of the device memory, from {_MEMORY_INFO}")
MEMORY_USED = _gauge(
    "memory_used_bytes",
    _BYTES,
    f"Device memory in use, without reserved memory if the driver reports that, from {_MEMORY_INFO}",
)
_gauge("memory_free_bytes", _BYTES, f"Device memory that can be allocated, from {_MEMORY_INFO}")
_gauge("memory_reserved_bytes", _BYTES, f"Device memory that the driver reserves, from {_MEMORY_INFO}")
_gauge("bar1_memory_bytes", _BYTES, "Size of BAR1, from nvmlDeviceGetBAR1MemoryInfo")
_gauge("bar1_memory_used_bytes", _BYTES, "BAR1 in use, from nvmlDeviceGetBAR1MemoryInfo")

TEMPERATURE = _gauge(
    "temperature_celsius",
    (-40.0, 150.0),
    f"Temperature by sensor: gpu from nvmlDeviceGetTemperature, memory from {_FIELD} 82",
    "sensor",
)
TEMPERATURE_THRESHOLD = _gauge(
    "temperature_threshold_celsius",
    (0.0, 150.0),
    "Temperature threshold, from nvmlDeviceGetTemperatureThreshold; GPUs since Ada report margins instead",
    "threshold",
)
THERMAL_MARGIN = _gauge(
    "thermal_margin_celsius",
    (-150.0, 150.0),
    "Degrees left until the threshold, on Ada and later, from nvmlDeviceGetMarginTemperature minus the threshold in "
    f"{_FIELD} 193 to 196",
    "threshold",
)
_gauge("fan_speed_ratio", (0.0, 2.0), "Intended fan speed; may exceed 1, from nvmlDeviceGetFanSpeed_v2", "fan")
POWER = _gauge("power_watts", _WATTS, f"Current power draw of the GPU, from {_FIELD} 186, else nvmlDeviceGetPowerUsage")
_gauge("power_average_watts", _WATTS, f"Mean power draw of the GPU over one second, from {_FIELD} 185")
_gauge(
    "module_power_watts",
    (0.0, 10_000.0),
    f"Power draw of a superchip's whole module, from {_FIELD} 186 of scope module",
)
ENERGY = _counter(
    "energy_joules", (0.0, 1e13), "Energy since the driver was loaded, from nvmlDeviceGetTotalEnergyConsumption"
)
POWER_LIMIT = _gauge(
    "power_limit_watts",
    _WATTS,
    "Power limit: enforced from nvmlDeviceGetEnforcedPowerLimit; min, max, default and requested from "
    f"{_FIELD} 187 to 192",
    "limit",
)

CLOCK = _gauge("clock_hertz", _HERTZ, "Current clock by domain, from nvmlDeviceGetClockInfo", "domain")
CLOCK_MAX = _gauge("clock_max_hertz", _HERTZ, "Maximum clock by domain, from nvmlDeviceGetMaxClockInfo", "domain")
PERFORMANCE_STATE = _gauge(
    "performance_state", (0.0, 15.0), "P-state, from 0 (fastest) to 15 (slowest), from nvmlDeviceGetPerformanceState"
)
CLOCK_LIMIT_ACTIVE = _gauge(
    "clock_limit_active",
    _FLAG,
    "1 while the reason limits the clocks, from nvmlDeviceGetCurrentClocksEventReasons",
    "reason",
)
CLOCK_LIMITED = _counter(
    "clock_limited_seconds",
    _SECONDS,
    f"Time in which the reason limited the clocks, from {_FIELD} 74 to 79 and 269 to 271",
    "reason",
)

PCIE_TRANSMIT = _counter(
    "pcie_transmit_bytes", _TRAFFIC, f"Bytes sent over PCIe, if the counter has more than 32 bits, from {_FIELD} 197"
)
PCIE_RECEIVE = _counter(
    "pcie_receive_bytes", _TRAFFIC, f"Bytes received over PCIe, if the counter has more than 32 bits, from {_FIELD} 198"
)
_gauge(
    "pcie_transmit_bytes_per_second",
    (0.0, 1e12),
    f"Rate of bytes sent over PCIe, from {_GPM}, else nvmlDeviceGetPcieThroughput, which takes 20 ms",
)
_gauge(
    "pcie_receive_bytes_per_second",
    (0.0, 1e12),
    f"Rate of bytes received over PCIe, from {_GPM}, else nvmlDeviceGetPcieThroughput, which takes 20 ms",
)
PCIE_LINK_GENERATION = _gauge(
    "pcie_link_generation",
    (1.0, 15.0),
    "Current PCIe generation of the link, which is lower while idle, from nvmlDeviceGetCurrPcieLinkGeneration",
)
_gauge(
    "pcie_link_max_generation",
    (1.0, 15.0),
    "Maximum PCIe generation of the link, from nvmlDeviceGetMaxPcieLinkGeneration",
)
PCIE_LINK_WIDTH = _gauge("pcie_link_width_lanes", (1.0, 64.0), "PCIe lanes in use, from nvmlDeviceGetCurrPcieLinkWidth")
PCIE_LINK_MAX_WIDTH = _gauge(
    "pcie_link_max_width_lanes", (1.0, 64.0), "Maximum PCIe lanes, from nvmlDeviceGetMaxPcieLinkWidth"
)
PCIE_REPLAYS = _counter(
    "pcie_replays", _ERRORS, "PCIe replays (packets that were sent again), from nvmlDeviceGetPcieReplayCounter"
)
PCIE_ERRORS = _counter("pcie_errors", _COUNT, f"PCIe errors, from {_FIELD} 169 to 183", "error")
_counter("nvlink_transmit_bytes", _TRAFFIC, f"Bytes of data sent over all NVLinks, from {_FIELD} 138 or 202")
_counter("nvlink_receive_bytes", _TRAFFIC, f"Bytes of data received over all NVLinks, from {_FIELD} 139 or 204")
NVLINK_LINKS = _gauge("nvlink_links", (0.0, 64.0), f"NVLinks that the GPU has, from {_FIELD} 91")
NVLINK_LINKS_UP = _gauge("nvlink_links_up", (0.0, 64.0), "NVLinks that are up, from nvmlDeviceGetNvLinkState")
NVLINK_ERRORS = _counter("nvlink_errors", _COUNT, f"NVLink errors over all links, from {_FIELD} 38 to 221", "error")
_gauge(
    "nvlink_speed_bytes_per_second", (0.0, 1e13), f"Speed of the slowest NVLink that is up, from {_FIELD} 164, else 90"
)
_gauge("nvlink_up", _FLAG, "1 while the NVLink is up, from nvmlDeviceGetNvLinkState", "link")
_counter(
    "nvlink_link_transmit_bytes", _TRAFFIC, f"Bytes of data sent over the NVLink, from {_FIELD} 138 or 202", "link"
)
_counter(
    "nvlink_link_receive_bytes", _TRAFFIC, f"Bytes of data received over the NVLink, from {_FIELD} 139 or 204", "link"
)
_gauge("c2c_link_up", _FLAG, f"1 while the link to the CPU is up, on Grace superchips, from {_FIELD} 171", "link")
C2C_ERRORS = _counter(
    "c2c_errors", _COUNT, f"Errors of the link to the CPU, on Grace superchips, from {_FIELD} 231 to 233", "error"
)

UP = _gauge("up", _FLAG, "1 if the GPU answers NVML; 0 while it is lost, hangs or is gone")
XID_ERRORS = _counter("xid_errors", _COUNT, "Xid errors since the daemon started, from nvmlEventSetWait_v2", "xid")
XID_LAST = _gauge(
    "xid_last_timestamp_seconds", _COUNT, "Unix time of the last error with this Xid, from nvmlEventSetWait_v2", "xid"
)
ECC_ERRORS = _counter(
    "ecc_errors",
    _ERRORS,
    "ECC errors (corrected or uncorrected) over the GPU's lifetime, from nvmlDeviceGetTotalEccErrors",
    "kind",
)
ECC_VOLATILE_ERRORS = _counter(
    "ecc_volatile_errors",
    _ERRORS,
    "ECC errors (corrected or uncorrected) since the driver was loaded, from nvmlDeviceGetTotalEccErrors",
    "kind",
)
_gauge(
    "sram_threshold_exceeded",
    _FLAG,
    "1 if the SRAM has had so many errors that NVIDIA replaces the GPU, from nvmlDeviceGetSramEccErrorStatus",
)
REMAPPED_ROWS = _counter("remapped_rows", _ERRORS, f"Memory rows that were remapped, from {_REMAPPED}", "cause")
ROW_REMAP_PENDING = _gauge(
    "row_remap_pending", _FLAG, f"1 if a memory row will be remapped at the next reset, from {_REMAPPED}"
)
ROW_REMAP_FAILED = _gauge("row_remap_failed", _FLAG, f"1 if a memory row could not be remapped, from {_REMAPPED}")
ROW_REMAP_BANKS = _gauge(
    "row_remap_banks",
    _ERRORS,
    "Memory banks by the spare rows that they have left, from nvmlDeviceGetRowRemapperHistogram",
    "availability",
)
_counter("retired_pages", _ERRORS, "Memory pages that were retired, from nvmlDeviceGetRetiredPages", "cause")
_gauge(
    "retired_pages_pending",
    _FLAG,
    "1 if a memory page will be retired at the next reset, from nvmlDeviceGetRetiredPagesPendingStatus",
)
RECOVERY_ACTION = _gauge(
    "recovery_action",
    (0.0, 15.0),
    "Recommended action: 0 none, 1 reset the GPU, 2 reboot the node, 3 drain P2P, 4 drain and reset, 5 restart IMEX, "
    f"6 reset the bus, 7 reboot the system, from {_FIELD} 230",
)
_gauge(
    "fabric_state",
    (0.0, 3.0),
    f"State of the NVLink fabric: 0 not supported, 1 not started, 2 in progress, 3 completed, from {_FABRIC}",
)
_gauge("fabric_healthy", _FLAG, f"1 if the GPU's part of the NVLink fabric is healthy, from {_FABRIC}")
FABRIC_PROBLEM = _gauge(
    "fabric_problem", _FLAG, f"1 while the NVLink fabric has this problem, from {_FABRIC}", "condition"
)
_gauge(
    "persistence_mode",
    _FLAG,
    "1 if persistence mode is on, so the driver stays loaded, from nvmlDeviceGetPersistenceMode",
)

PROCESSES = _gauge("processes", _COUNT, f"Processes that compute on the GPU, from {_PROCESS_LIST}")
PROCESS_MEMORY = _gauge(
    "process_memory_bytes", _BYTES, f"Device memory that the process uses, from {_PROCESS_LIST}", "pid"
)
PROCESS_SM_UTILIZATION = _gauge(
    "process_sm_utilization_ratio", _RATIO, "SM utilization by the process, from nvmlDeviceGetProcessUtilization", "pid"
)
_gauge(
    "process_memory_utilization_ratio",
    _RATIO,
    "Fraction of time in which the process read or wrote device memory, from nvmlDeviceGetProcessUtilization",
    "pid",
)
_gauge(
    "process_max_memory_bytes", _BYTES, "Peak device memory of the process, from nvmlDeviceGetAccountingStats", "pid"
)

_gauge("mig_mode", _FLAG, "1 if MIG is enabled, from nvmlDeviceGetMigMode")
_gauge(
    "mig_info",
    _FLAG,
    "A MIG device of the GPU, from nvmlDeviceGetMigDeviceHandleByIndex and nvmlDeviceGetAttributes_v2",
    "mig_uuid",
    "gpu_instance_id",
    "compute_instance_id",
    "profile",
)
_gauge("mig_memory_bytes", _BYTES, f"Size of the MIG device's memory, from {_MEMORY_INFO}", "mig_uuid")
_gauge("mig_memory_used_bytes", _BYTES, f"Memory in use on the MIG device, from {_MEMORY_INFO}", "mig_uuid")
_gauge(
    "mig_graphics_engine_active_ratio",
    _RATIO,
    "Fraction of time in which the MIG device's GPU instance had any work, from nvmlGpmMigSampleGet",
    "mig_uuid",
)
_gauge(
    "mig_sm_active_ratio",
    _RATIO,
    "Fraction of time in which an SM of the MIG device's GPU instance had at least one warp, mean over its SMs, from nvmlGpmMigSampleGet",
    "mig_uuid",
)
_gauge(
    "mig_sm_occupancy_ratio",
    _RATIO,
    "Resident warps of the MIG device's GPU instance divided by the maximum that its SMs can hold, from nvmlGpmMigSampleGet",
    "mig_uuid",
)
_gauge(
    "mig_tensor_active_ratio",
    _RATIO,
    "Fraction of time in which the tensor cores of the MIG device's GPU instance were busy, from nvmlGpmMigSampleGet",
    "mig_uuid",
)

INFO = define(
    "trackside_gpu_info",
    "Identification of a GPU, from nvmlDeviceGetName, nvmlDeviceGetPciInfo and similar calls, sampled by the daemon's tick.",
    *("gpu", "uuid", "name", "pci_bus_id", "serial", "vbios_version", "architecture", "compute_capability", "minor"),
    *("numa_node", "source"),
)

POD_INFO = define(
    "trackside_gpu_pod_info",
    "A container of Kubernetes that has the GPU or a MIG device of it, from the kubelet's PodResourcesLister; sampled by the daemon's tick.",
    *("gpu", "uuid", "k8s_namespace", "k8s_pod", "k8s_container"),
)

RANK_INFO = define(
    "trackside_gpu_rank_info",
    "A rank on a GPU; NVML lists the rank's process or one that it started, or else the rank reports the GPU; sampled "
    "by the daemon's tick.",
    *("gpu", "uuid", "run", "rank"),
)
