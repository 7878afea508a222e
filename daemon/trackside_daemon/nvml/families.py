"""Every family of a GPU: its name, what it says, where it comes from, and the bounds beyond which it is no measurement.

Both sides of the worker's pipe read this table: the worker to drop what cannot be, the collector to make samples. A
value is named by the family's short name, which is the metric's without ``trackside_gpu_``.
"""

from __future__ import annotations

from typing import NamedTuple

from trackside_daemon.model.metric import Kind, Metric

PREFIX = "trackside_gpu_"

RATIO = (0.0, 1.001)
FLAG = (0.0, 1.0)
BYTES = (0.0, 2.0**50)
WATTS = (0.0, 3000.0)
HERTZ = (0.0, 1e11)
COUNT = (0.0, 2.0**53)
ERRORS = (0.0, 2.0**32 - 2)
SECONDS = (0.0, 1e9)
TRAFFIC = (0.0, 1.8e19)
"""Traffic, and the cycles of all SMs, pass within hours the 2**53 up to which a float counts exactly. All bounds lie below
what drivers answer for what they do not know, 32 or 64 bits of ones, and below the more than 100 % that they have
answered: NVIDIA/DCGM#199, dcgm-exporter#418."""


class Family(NamedTuple):
    """A metric, and the lowest and highest value that it can have."""

    metric: Metric
    low: float
    high: float

    @property
    def short(self) -> str:
        """What the worker calls it."""
        return self.metric.name.removeprefix(PREFIX)


UNITS = ("ratio", "seconds", "bytes", "bytes_per_second", "celsius", "watts", "joules", "hertz", "lanes", "cycles")


def _family(kind: Kind, name: str, bounds: tuple[float, float], says: str, *labels: str) -> Family:
    base = name.removesuffix("_total")
    unit = max((one for one in UNITS if base.endswith(f"_{one}")), key=len, default="")
    tells = f"{says}; sampled by the daemon's tick."
    return Family(Metric(PREFIX + name, kind, tells, ("gpu", "uuid", *labels), unit), *bounds)


def _gauge(name: str, bounds: tuple[float, float], says: str, *labels: str) -> Family:
    return _family("gauge", name, bounds, says, *labels)


def _counter(name: str, bounds: tuple[float, float], says: str, *labels: str) -> Family:
    return _family("counter", f"{name}_total", bounds, says, *labels)


RATES = "nvmlDeviceGetUtilizationRates"
MEMORY = "nvmlDeviceGetMemoryInfo_v2"
FIELD = "nvmlDeviceGetFieldValues"
GPM = "nvmlGpmMetricsGet (Hopper and later)"
REMAPPED = "nvmlDeviceGetRemappedRows"
PROCESSES = "nvmlDeviceGetComputeRunningProcesses_v3"
FABRIC = "nvmlDeviceGetGpuFabricInfoV"

UTILIZATION = (
    _gauge("utilization_ratio", RATIO, f"Share of time in which a kernel ran, from {RATES}"),
    _counter(
        "busy_seconds",
        SECONDS,
        "Time in which a kernel ran, summed over the driver's own samples, from nvmlDeviceGetSamples",
    ),
    _gauge(
        "memory_controller_utilization_ratio",
        RATIO,
        f"Share of time in which device memory was read or written, from {RATES}",
    ),
    _gauge(
        "engine_utilization_ratio",
        RATIO,
        "Share of time in which an engine worked: encoder, decoder, jpeg, ofa, from nvmlDeviceGetEncoderUtilization and "
        "its kind",
        "engine",
    ),
    _gauge("graphics_engine_active_ratio", RATIO, f"Share of time in which the GPU had any work, from {GPM}"),
    _gauge("sm_active_ratio", RATIO, f"Share of time in which an SM had a warp, over all SMs, from {GPM}"),
    _gauge("sm_occupancy_ratio", RATIO, f"Warps on the SMs over the most that they can have, from {GPM}"),
    _gauge("tensor_active_ratio", RATIO, f"Share of time in which the tensor cores worked, from {GPM}"),
    _gauge(
        "pipe_active_ratio",
        RATIO,
        f"Share of time in which a pipe worked; pipes overlap, do not add them, from {GPM}",
        "pipe",
    ),
    _gauge("dram_active_ratio", RATIO, f"Device memory bandwidth used over the most that there is, from {GPM}"),
    _counter("sm_cycles", TRAFFIC, f"Cycles of all SMs since boot, from {GPM}"),
    _counter("sm_active_cycles", TRAFFIC, f"Cycles in which an SM had a warp since boot, from {GPM}"),
    _counter("tensor_active_cycles", TRAFFIC, f"Cycles in which the tensor cores worked since boot, from {GPM}"),
    _gauge("mma_stall_ratio", RATIO, f"Share of time in which matrix instructions waited, from {FIELD} 297"),
)

MEMORIES = (
    _gauge("memory_bytes", BYTES, f"Size of the device memory, from {MEMORY}"),
    _gauge("memory_used_bytes", BYTES, f"Device memory in use, without the reserved where that is told, from {MEMORY}"),
    _gauge("memory_free_bytes", BYTES, f"Device memory that can be allocated, from {MEMORY}"),
    _gauge("memory_reserved_bytes", BYTES, f"Device memory that the driver keeps, from {MEMORY}"),
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
        "Temperature at which something happens, from nvmlDeviceGetTemperatureThreshold; since Ada there are margins",
        "threshold",
    ),
    _gauge(
        "thermal_margin_celsius",
        (-150.0, 150.0),
        "Degrees that are left until something happens, since Ada, from nvmlDeviceGetMarginTemperature less what "
        f"{FIELD} 193 to 196 say of the threshold",
        "threshold",
    ),
    _gauge("fan_speed_ratio", (0.0, 2.0), "Intended fan speed; may exceed 1, from nvmlDeviceGetFanSpeed_v2", "fan"),
    _gauge("power_watts", WATTS, f"Power that the GPU draws now, from {FIELD} 186, else nvmlDeviceGetPowerUsage"),
    _gauge("power_average_watts", WATTS, f"Power that the GPU draws, mean of a second, from {FIELD} 185"),
    _gauge(
        "module_power_watts",
        (0.0, 10_000.0),
        f"Power of the whole module of a superchip, from {FIELD} 186 of scope module",
    ),
    _counter(
        "energy_joules", (0.0, 1e13), "Energy since the driver was loaded, from nvmlDeviceGetTotalEnergyConsumption"
    ),
    _gauge(
        "power_limit_watts",
        WATTS,
        f"Power limit: enforced from nvmlDeviceGetEnforcedPowerLimit, min, max, default and requested from {FIELD} 187 "
        "to 192",
        "limit",
    ),
)

CLOCKS = (
    _gauge("clock_hertz", HERTZ, "Clock by domain, from nvmlDeviceGetClockInfo", "domain"),
    _gauge("clock_max_hertz", HERTZ, "Highest clock by domain, from nvmlDeviceGetMaxClockInfo", "domain"),
    _gauge(
        "performance_state",
        (0.0, 15.0),
        "P-state, 0 the fastest and 15 the slowest, from nvmlDeviceGetPerformanceState",
    ),
    _gauge(
        "clock_limit_active",
        FLAG,
        "1 while the reason keeps the clocks down, from nvmlDeviceGetCurrentClocksEventReasons",
        "reason",
    ),
    _counter(
        "clock_limited_seconds",
        SECONDS,
        f"Time in which the reason kept the clocks down, from {FIELD} 74 to 79 and 269 to 271",
        "reason",
    ),
)

LINKS = (
    _counter(
        "pcie_transmit_bytes",
        TRAFFIC,
        f"Bytes sent over PCIe, where the counter has more than 32 bits, from {FIELD} 197",
    ),
    _counter(
        "pcie_receive_bytes",
        TRAFFIC,
        f"Bytes received over PCIe, where the counter has more than 32 bits, from {FIELD} 198",
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
        "PCIe generation of the link now, which falls while idle, from nvmlDeviceGetCurrPcieLinkGeneration",
    ),
    _gauge("pcie_link_max_generation", (1.0, 15.0), "Highest PCIe generation, from nvmlDeviceGetMaxPcieLinkGeneration"),
    _gauge("pcie_link_width_lanes", (1.0, 64.0), "PCIe lanes in use, from nvmlDeviceGetCurrPcieLinkWidth"),
    _gauge("pcie_link_max_width_lanes", (1.0, 64.0), "PCIe lanes that there are, from nvmlDeviceGetMaxPcieLinkWidth"),
    _counter("pcie_replays", ERRORS, "PCIe packets sent again, from nvmlDeviceGetPcieReplayCounter"),
    _counter("pcie_errors", COUNT, f"PCIe errors, from {FIELD} 169 to 183", "error"),
    _counter("nvlink_transmit_bytes", TRAFFIC, f"Bytes of data sent over all NVLinks, from {FIELD} 138 or 202"),
    _counter("nvlink_receive_bytes", TRAFFIC, f"Bytes of data received over all NVLinks, from {FIELD} 139 or 204"),
    _gauge("nvlink_links", (0.0, 64.0), f"NVLinks that the GPU has, from {FIELD} 91"),
    _gauge("nvlink_links_up", (0.0, 64.0), "NVLinks that are up, from nvmlDeviceGetNvLinkState"),
    _counter("nvlink_errors", COUNT, f"NVLink errors over all links, from {FIELD} 38 to 221", "error"),
    _gauge(
        "nvlink_speed_bytes_per_second",
        (0.0, 1e13),
        f"Speed of one NVLink, the slowest that is up, from {FIELD} 164, else 90",
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
    _gauge("up", FLAG, "1 when the GPU answers; 0 while it is lost, hangs or is gone, until it returns"),
    _counter("xid_errors", COUNT, "Xid errors since the daemon began, from nvmlEventSetWait_v2", "xid"),
    _gauge(
        "xid_last_timestamp_seconds", COUNT, "Unix time of the last such Xid error, from nvmlEventSetWait_v2", "xid"
    ),
    _counter(
        "ecc_errors",
        ERRORS,
        "ECC errors over the GPU's life: corrected, uncorrected, from nvmlDeviceGetTotalEccErrors",
        "kind",
    ),
    _counter(
        "ecc_volatile_errors",
        ERRORS,
        "ECC errors since the driver was loaded: corrected, uncorrected, from nvmlDeviceGetTotalEccErrors",
        "kind",
    ),
    _gauge(
        "sram_threshold_exceeded",
        FLAG,
        "1 when the SRAM has had so many errors that NVIDIA replaces the GPU, from nvmlDeviceGetSramEccErrorStatus",
    ),
    _counter("remapped_rows", ERRORS, f"Rows of memory that were replaced, from {REMAPPED}", "cause"),
    _gauge("row_remap_pending", FLAG, f"1 when a row is replaced at the next reset, from {REMAPPED}"),
    _gauge("row_remap_failed", FLAG, f"1 when a row could not be replaced, from {REMAPPED}"),
    _gauge(
        "row_remap_banks",
        ERRORS,
        "Banks of memory by how many spare rows they have left, from nvmlDeviceGetRowRemapperHistogram",
        "availability",
    ),
    _counter(
        "retired_pages", ERRORS, "Pages of memory that are no longer used, from nvmlDeviceGetRetiredPages", "cause"
    ),
    _gauge(
        "retired_pages_pending",
        FLAG,
        "1 when a page goes out of use at the next reset, from nvmlDeviceGetRetiredPagesPendingStatus",
    ),
    _gauge(
        "recovery_action",
        (0.0, 15.0),
        "What the GPU needs: 0 nothing, 1 its reset, 2 a reboot, 3 P2P drained, 4 drained and reset, 5 IMEX restarted, "
        f"6 bus reset, 7 system reboot, from {FIELD} 230",
    ),
    _gauge("fabric_state", (0.0, 3.0), f"0 not supported, 1 not started, 2 starting, 3 done, from {FABRIC}"),
    _gauge("fabric_healthy", FLAG, f"1 when the GPU's part of the NVLink fabric is healthy, from {FABRIC}"),
    _gauge("fabric_problem", FLAG, f"1 while the NVLink fabric has this problem, from {FABRIC}", "condition"),
    _gauge("persistence_mode", FLAG, "1 when the driver stays loaded, from nvmlDeviceGetPersistenceMode"),
)

BY_PROCESS = (
    _gauge("processes", COUNT, f"Processes that compute on the GPU, from {PROCESSES}"),
    _gauge("process_memory_bytes", BYTES, f"Device memory of the process, from {PROCESSES}", "pid"),
    _gauge("process_sm_utilization_ratio", RATIO, "SM use by the process, from nvmlDeviceGetProcessUtilization", "pid"),
    _gauge(
        "process_memory_utilization_ratio",
        RATIO,
        "Share of time in which the process read or wrote device memory, from nvmlDeviceGetProcessUtilization",
        "pid",
    ),
    _gauge(
        "process_max_memory_bytes",
        BYTES,
        "Most device memory that the process has had, from nvmlDeviceGetAccountingStats",
        "pid",
    ),
)

MIG = (
    _gauge("mig_mode", FLAG, "1 when the GPU is divided by MIG, from nvmlDeviceGetMigMode"),
    _family(
        "info",
        "mig_info",
        FLAG,
        "A MIG device of the GPU, from nvmlDeviceGetMigDeviceHandleByIndex and nvmlDeviceGetAttributes_v2",
        *("mig_uuid", "gpu_instance_id", "compute_instance_id", "profile"),
    ),
    _gauge("mig_memory_bytes", BYTES, f"Size of the MIG device's memory, from {MEMORY}", "mig_uuid"),
    _gauge("mig_memory_used_bytes", BYTES, f"Memory of the MIG device in use, from {MEMORY}", "mig_uuid"),
    _gauge(
        "mig_graphics_engine_active_ratio",
        RATIO,
        "Share of time in which the MIG device had any work, as of its GPU instance, from nvmlGpmMigSampleGet",
        "mig_uuid",
    ),
    _gauge(
        "mig_sm_active_ratio",
        RATIO,
        "Share of time in which an SM of the MIG device had a warp, over all its SMs, as of its GPU instance, from nvmlGpmMigSampleGet",
        "mig_uuid",
    ),
    _gauge(
        "mig_sm_occupancy_ratio",
        RATIO,
        "Warps on the SMs of the MIG device over the most that they can have, as of its GPU instance, from nvmlGpmMigSampleGet",
        "mig_uuid",
    ),
    _gauge(
        "mig_tensor_active_ratio",
        RATIO,
        "Share of time in which the tensor cores of the MIG device worked, as of its GPU instance, from nvmlGpmMigSampleGet",
        "mig_uuid",
    ),
)

FAMILIES = {
    family.short: family for family in (*UTILIZATION, *MEMORIES, *THERMALS, *CLOCKS, *LINKS, *HEALTH, *BY_PROCESS, *MIG)
}
"""By the short names."""
