"""Metric families of a GPU: names, help texts with the NVML call, and the bounds of plausible values.

Both ends of the worker's pipe read this table: the worker to drop implausible values, the collector to make samples.
The worker names a family by its short name, which is the metric's name without ``trackside_gpu_``.
"""

from __future__ import annotations

from typing import NamedTuple

from trackside_daemon.model.metric import Kind, Metric

PREFIX = "trackside_gpu_"

# Lowest and highest plausible values. They are below the numbers that drivers return for unknown values, 32 or 64 bits of
# ones, and below the more than 100 % that drivers have returned: NVIDIA/DCGM#199, dcgm-exporter#418.
RATIO = (0.0, 1.001)
FLAG = (0.0, 1.0)
BYTES = (0.0, 2.0**50)
WATTS = (0.0, 3000.0)
HERTZ = (0.0, 1e11)
COUNT = (0.0, 2.0**53)
ERRORS = (0.0, 2.0**32 - 2)
SECONDS = (0.0, 1e9)

# Traffic, and the cycles of all SMs, exceed within hours the 2**53 up to which a float counts exactly.
TRAFFIC = (0.0, 1.8e19)


class Family(NamedTuple):
    """A metric with its lowest and highest plausible value."""

    metric: Metric
    low: float
    high: float

    @property
    def short_name(self) -> str:
        """Name in the worker's readings."""
        return self.metric.name.removeprefix(PREFIX)


UNITS = ("ratio", "seconds", "bytes", "bytes_per_second", "celsius", "watts", "joules", "hertz", "lanes", "cycles")


def _family(kind: Kind, name: str, bounds: tuple[float, float], description: str, *labels: str) -> Family:
    base = name.removesuffix("_total")
    unit = max((unit for unit in UNITS if base.endswith(f"_{unit}")), key=len, default="")
    help_text = f"{description}; sampled at each tick."
    return Family(Metric(PREFIX + name, kind, help_text, ("gpu", "uuid", *labels), unit), *bounds)


def _gauge(name: str, bounds: tuple[float, float], description: str, *labels: str) -> Family:
    return _family("gauge", name, bounds, description, *labels)


def _counter(name: str, bounds: tuple[float, float], description: str, *labels: str) -> Family:
    return _family("counter", f"{name}_total", bounds, description, *labels)


RATES = "nvmlDeviceGetUtilizationRates"
MEMORY = "nvmlDeviceGetMemoryInfo_v2"
FIELD = "nvmlDeviceGetFieldValues"
GPM = "nvmlGpmMetricsGet (Hopper and later)"
REMAPPED = "nvmlDeviceGetRemappedRows"
PROCESSES = "nvmlDeviceGetComputeRunningProcesses_v3"
FABRIC = "nvmlDeviceGetGpuFabricInfoV"

UTILIZATION = (
    _gauge("utilization_ratio", RATIO, f"Fraction of time with a running kernel, from {RATES}"),
    _counter(
        "busy_seconds",
        SECONDS,
        "Time with a running kernel, summed over the driver's samples, from nvmlDeviceGetSamples",
    ),
    _gauge(
        "memory_controller_utilization_ratio",
        RATIO,
        f"Fraction of time with reads or writes of device memory, from {RATES}",
    ),
    _gauge(
        "engine_utilization_ratio",
        RATIO,
        "Fraction of time in which the engine (encoder, decoder, jpeg or ofa) was busy, from "
        "nvmlDeviceGetEncoderUtilization and its siblings",
        "engine",
    ),
    _gauge("graphics_engine_active_ratio", RATIO, f"Fraction of time in which the GPU had any work, from {GPM}"),
    _gauge(
        "sm_active_ratio",
        RATIO,
        f"Fraction of time in which an SM had at least one warp, mean over all SMs, from {GPM}",
    ),
    _gauge("sm_occupancy_ratio", RATIO, f"Resident warps divided by the maximum that the SMs can hold, from {GPM}"),
    _gauge("tensor_active_ratio", RATIO, f"Fraction of time in which the tensor cores were busy, from {GPM}"),
    _gauge(
        "pipe_active_ratio",
        RATIO,
        f"Fraction of time in which the pipe was busy; pipes overlap, so do not add them, from {GPM}",
        "pipe",
    ),
    _gauge("dram_active_ratio", RATIO, f"Device memory bandwidth in use divided by the maximum, from {GPM}"),
    _counter("sm_cycles", TRAFFIC, f"Cycles of all SMs since boot, from {GPM}"),
    _counter("sm_active_cycles", TRAFFIC, f"Cycles since boot in which an SM had at least one warp, from {GPM}"),
    _counter("tensor_active_cycles", TRAFFIC, f"Cycles since boot in which the tensor cores were busy, from {GPM}"),
    _gauge("mma_stall_ratio", RATIO, f"Fraction of time in which matrix instructions were stalled, from {FIELD} 297"),
)

MEMORIES = (
    _gauge("memory_bytes", BYTES, f"Size of the device memory, from {MEMORY}"),
    _gauge(
        "memory_used_bytes",
        BYTES,
        f"Device memory in use, without reserved memory if the driver reports that, from {MEMORY}",
    ),
    _gauge("memory_free_bytes", BYTES, f"Device memory that can be allocated, from {MEMORY}"),
    _gauge("memory_reserved_bytes", BYTES, f"Device memory that the driver reserves, from {MEMORY}"),
    _gauge("bar1_memory_bytes", BYTES, "Size of BAR1, from nvmlDeviceGetBAR1MemoryInfo"),
    _gauge("bar1_memory_used_bytes", BYTES, "BAR1 in use, from nvmlDeviceGetBAR1MemoryInfo"),
)

THERMALS = (
    _gauge(
        "temperature_celsius",
        (-40.0, 150.0),
        f"Temperature by sensor: gpu from nvmlDeviceGetTemperature, memory from {FIELD} 82",
        "sensor",
    ),
    _gauge(
        "temperature_threshold_celsius",
        (0.0, 150.0),
        "Temperature threshold, from nvmlDeviceGetTemperatureThreshold; GPUs since Ada report margins instead",
        "threshold",
    ),
    _gauge(
        "thermal_margin_celsius",
        (-150.0, 150.0),
        "Degrees left until the threshold, on Ada and later, from nvmlDeviceGetMarginTemperature minus the threshold in "
        f"{FIELD} 193 to 196",
        "threshold",
    ),
    _gauge("fan_speed_ratio", (0.0, 2.0), "Intended fan speed; may exceed 1, from nvmlDeviceGetFanSpeed_v2", "fan"),
    _gauge("power_watts", WATTS, f"Current power draw of the GPU, from {FIELD} 186, else nvmlDeviceGetPowerUsage"),
    _gauge("power_average_watts", WATTS, f"Mean power draw of the GPU over one second, from {FIELD} 185"),
    _gauge(
        "module_power_watts",
        (0.0, 10_000.0),
        f"Power draw of a superchip's whole module, from {FIELD} 186 of scope module",
    ),
    _counter(
        "energy_joules", (0.0, 1e13), "Energy since the driver was loaded, from nvmlDeviceGetTotalEnergyConsumption"
    ),
    _gauge(
        "power_limit_watts",
        WATTS,
        "Power limit: enforced from nvmlDeviceGetEnforcedPowerLimit; min, max, default and requested from "
        f"{FIELD} 187 to 192",
        "limit",
    ),
)

CLOCKS = (
    _gauge("clock_hertz", HERTZ, "Current clock by domain, from nvmlDeviceGetClockInfo", "domain"),
    _gauge("clock_max_hertz", HERTZ, "Maximum clock by domain, from nvmlDeviceGetMaxClockInfo", "domain"),
    _gauge(
        "performance_state",
        (0.0, 15.0),
        "P-state, from 0 (fastest) to 15 (slowest), from nvmlDeviceGetPerformanceState",
    ),
    _gauge(
        "clock_limit_active",
        FLAG,
        "1 while the reason limits the clocks, from nvmlDeviceGetCurrentClocksEventReasons",
        "reason",
    ),
    _counter(
        "clock_limited_seconds",
        SECONDS,
        f"Time in which the reason limited the clocks, from {FIELD} 74 to 79 and 269 to 271",
        "reason",
    ),
)

LINKS = (
    _counter(
        "pcie_transmit_bytes",
        TRAFFIC,
        f"Bytes sent over PCIe, if the counter has more than 32 bits, from {FIELD} 197",
    ),
    _counter(
        "pcie_receive_bytes",
        TRAFFIC,
        f"Bytes received over PCIe, if the counter has more than 32 bits, from {FIELD} 198",
    ),
    _gauge(
        "pcie_transmit_bytes_per_second",
        (0.0, 1e12),
        f"Rate of bytes sent over PCIe, from {GPM}, else nvmlDeviceGetPcieThroughput, which takes 20 ms",
    ),
    _gauge(
        "pcie_receive_bytes_per_second",
        (0.0, 1e12),
        f"Rate of bytes received over PCIe, from {GPM}, else nvmlDeviceGetPcieThroughput, which takes 20 ms",
    ),
    _gauge(
        "pcie_link_generation",
        (1.0, 15.0),
        "Current PCIe generation of the link, which is lower while idle, from nvmlDeviceGetCurrPcieLinkGeneration",
    ),
    _gauge(
        "pcie_link_max_generation",
        (1.0, 15.0),
        "Maximum PCIe generation of the link, from nvmlDeviceGetMaxPcieLinkGeneration",
    ),
    _gauge("pcie_link_width_lanes", (1.0, 64.0), "PCIe lanes in use, from nvmlDeviceGetCurrPcieLinkWidth"),
    _gauge("pcie_link_max_width_lanes", (1.0, 64.0), "Maximum PCIe lanes, from nvmlDeviceGetMaxPcieLinkWidth"),
    _counter(
        "pcie_replays", ERRORS, "PCIe replays (packets that were sent again), from nvmlDeviceGetPcieReplayCounter"
    ),
    _counter("pcie_errors", COUNT, f"PCIe errors, from {FIELD} 169 to 183", "error"),
    _counter("nvlink_transmit_bytes", TRAFFIC, f"Bytes of data sent over all NVLinks, from {FIELD} 138 or 202"),
    _counter("nvlink_receive_bytes", TRAFFIC, f"Bytes of data received over all NVLinks, from {FIELD} 139 or 204"),
    _gauge("nvlink_links", (0.0, 64.0), f"NVLinks that the GPU has, from {FIELD} 91"),
    _gauge("nvlink_links_up", (0.0, 64.0), "NVLinks that are up, from nvmlDeviceGetNvLinkState"),
    _counter("nvlink_errors", COUNT, f"NVLink errors over all links, from {FIELD} 38 to 221", "error"),
    _gauge(
        "nvlink_speed_bytes_per_second",
        (0.0, 1e13),
        f"Speed of the slowest NVLink that is up, from {FIELD} 164, else 90",
    ),
    _gauge("nvlink_up", FLAG, "1 while the NVLink is up, from nvmlDeviceGetNvLinkState", "link"),
    _counter(
        "nvlink_link_transmit_bytes", TRAFFIC, f"Bytes of data sent over the NVLink, from {FIELD} 138 or 202", "link"
    ),
    _counter(
        "nvlink_link_receive_bytes", TRAFFIC, f"Bytes of data received over the NVLink, from {FIELD} 139 or 204", "link"
    ),
    _gauge("c2c_link_up", FLAG, f"1 while the link to the CPU is up, on Grace superchips, from {FIELD} 171", "link"),
    _counter(
        "c2c_errors", COUNT, f"Errors of the link to the CPU, on Grace superchips, from {FIELD} 231 to 233", "error"
    ),
)

HEALTH = (
    _gauge("up", FLAG, "1 if the GPU answers NVML; 0 while it is lost, hangs or is gone"),
    _counter("xid_errors", COUNT, "Xid errors since the daemon started, from nvmlEventSetWait_v2", "xid"),
    _gauge(
        "xid_last_timestamp_seconds",
        COUNT,
        "Unix time of the last error with this Xid, from nvmlEventSetWait_v2",
        "xid",
    ),
    _counter(
        "ecc_errors",
        ERRORS,
        "ECC errors (corrected or uncorrected) over the GPU's lifetime, from nvmlDeviceGetTotalEccErrors",
        "kind",
    ),
    _counter(
        "ecc_volatile_errors",
        ERRORS,
        "ECC errors (corrected or uncorrected) since the driver was loaded, from nvmlDeviceGetTotalEccErrors",
        "kind",
    ),
    _gauge(
        "sram_threshold_exceeded",
        FLAG,
        "1 if the SRAM has had so many errors that NVIDIA replaces the GPU, from nvmlDeviceGetSramEccErrorStatus",
    ),
    _counter("remapped_rows", ERRORS, f"Memory rows that were remapped, from {REMAPPED}", "cause"),
    _gauge("row_remap_pending", FLAG, f"1 if a memory row will be remapped at the next reset, from {REMAPPED}"),
    _gauge("row_remap_failed", FLAG, f"1 if a memory row could not be remapped, from {REMAPPED}"),
    _gauge(
        "row_remap_banks",
        ERRORS,
        "Memory banks by the spare rows that they have left, from nvmlDeviceGetRowRemapperHistogram",
        "availability",
    ),
    _counter("retired_pages", ERRORS, "Memory pages that were retired, from nvmlDeviceGetRetiredPages", "cause"),
    _gauge(
        "retired_pages_pending",
        FLAG,
        "1 if a memory page will be retired at the next reset, from nvmlDeviceGetRetiredPagesPendingStatus",
    ),
    _gauge(
        "recovery_action",
        (0.0, 15.0),
        "Recommended action: 0 none, 1 reset the GPU, 2 reboot the node, 3 drain P2P, 4 drain and reset, 5 restart IMEX, "
        f"6 reset the bus, 7 reboot the system, from {FIELD} 230",
    ),
    _gauge(
        "fabric_state",
        (0.0, 3.0),
        f"State of the NVLink fabric: 0 not supported, 1 not started, 2 in progress, 3 completed, from {FABRIC}",
    ),
    _gauge("fabric_healthy", FLAG, f"1 if the GPU's part of the NVLink fabric is healthy, from {FABRIC}"),
    _gauge("fabric_problem", FLAG, f"1 while the NVLink fabric has this problem, from {FABRIC}", "condition"),
    _gauge(
        "persistence_mode",
        FLAG,
        "1 if persistence mode is on, so the driver stays loaded, from nvmlDeviceGetPersistenceMode",
    ),
)

BY_PROCESS = (
    _gauge("processes", COUNT, f"Processes that compute on the GPU, from {PROCESSES}"),
    _gauge("process_memory_bytes", BYTES, f"Device memory that the process uses, from {PROCESSES}", "pid"),
    _gauge(
        "process_sm_utilization_ratio",
        RATIO,
        "SM utilization by the process, from nvmlDeviceGetProcessUtilization",
        "pid",
    ),
    _gauge(
        "process_memory_utilization_ratio",
        RATIO,
        "Fraction of time in which the process read or wrote device memory, from nvmlDeviceGetProcessUtilization",
        "pid",
    ),
    _gauge(
        "process_max_memory_bytes",
        BYTES,
        "Peak device memory of the process, from nvmlDeviceGetAccountingStats",
        "pid",
    ),
)

MIG = (
    _gauge("mig_mode", FLAG, "1 if MIG is enabled, from nvmlDeviceGetMigMode"),
    _family(
        "info",
        "mig_info",
        FLAG,
        "A MIG device of the GPU, from nvmlDeviceGetMigDeviceHandleByIndex and nvmlDeviceGetAttributes_v2",
        "mig_uuid",
        "gpu_instance_id",
        "compute_instance_id",
        "profile",
    ),
    _gauge("mig_memory_bytes", BYTES, f"Size of the MIG device's memory, from {MEMORY}", "mig_uuid"),
    _gauge("mig_memory_used_bytes", BYTES, f"Memory in use on the MIG device, from {MEMORY}", "mig_uuid"),
    _gauge(
        "mig_graphics_engine_active_ratio",
        RATIO,
        "Fraction of time in which the MIG device's GPU instance had any work, from nvmlGpmMigSampleGet",
        "mig_uuid",
    ),
    _gauge(
        "mig_sm_active_ratio",
        RATIO,
        "Fraction of time in which an SM of the MIG device's GPU instance had at least one warp, mean over its SMs, from nvmlGpmMigSampleGet",
        "mig_uuid",
    ),
    _gauge(
        "mig_sm_occupancy_ratio",
        RATIO,
        "Resident warps of the MIG device's GPU instance divided by the maximum that its SMs can hold, from nvmlGpmMigSampleGet",
        "mig_uuid",
    ),
    _gauge(
        "mig_tensor_active_ratio",
        RATIO,
        "Fraction of time in which the tensor cores of the MIG device's GPU instance were busy, from nvmlGpmMigSampleGet",
        "mig_uuid",
    ),
)

# Families by their short names.
FAMILIES = {
    family.short_name: family
    for family in (*UTILIZATION, *MEMORIES, *THERMALS, *CLOCKS, *LINKS, *HEALTH, *BY_PROCESS, *MIG)
}
