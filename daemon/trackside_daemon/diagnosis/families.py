"""The series of the machine that a diagnosis reads."""

from __future__ import annotations

from trackside_daemon.alerts.evidence.causes import gpu_causes, host_causes
from trackside_daemon.model.families import gpu, process

CLOCK, CLOCK_LIMIT = gpu_causes.CLOCK, gpu_causes.LIMIT
CPU, CPUS, CPU_WAIT, CPU_LIMITED = host_causes.CPU, host_causes.CPUS, host_causes.CPU_WAIT, host_causes.CPU_LIMITED
PROCESS_CPU, WORKER_CPU, CHILD_CPU = host_causes.OWN_CPU
RANK_INFO, PROCESS_INFO = gpu.RANK_INFO.name, process.PROCESS_INFO.name
UTILIZATION = "trackside_gpu_utilization_ratio"
BUSY = "trackside_gpu_busy_seconds_total"
SM_ACTIVE = "trackside_gpu_sm_active_ratio"
TENSOR_ACTIVE = "trackside_gpu_tensor_active_ratio"
GPU_MEMORY = "trackside_gpu_memory_bytes"
GPU_MEMORY_USED = "trackside_gpu_memory_used_bytes"
GPU_POWER = "trackside_gpu_power_watts"
GPU_INFO = "trackside_gpu_info"
GPU_ENERGY = "trackside_gpu_energy_joules_total"
CPU_ENERGY = "trackside_host_cpu_energy_joules_total"
CPU_LIMIT = "trackside_cgroup_cpu_limit_cores"
CGROUP_MEMORY = "trackside_cgroup_memory_working_set_bytes"
CGROUP_MEMORY_LIMIT = "trackside_cgroup_memory_limit_bytes"
CGROUP_STALLED = "trackside_cgroup_pressure_stalled_seconds_total"
MEMORY_STALLED = "trackside_host_pressure_memory_stalled_seconds_total"
IO_STALLED = "trackside_host_pressure_io_stalled_seconds_total"
SWAPPED_IN = "trackside_host_swap_in_pages_total"
MEMORY = "trackside_host_memory_bytes"
MEMORY_AVAILABLE = "trackside_host_memory_available_bytes"
DISK_READ = "trackside_host_disk_read_bytes_total"
DISK_WRITTEN = "trackside_host_disk_written_bytes_total"
RECEIVED = "trackside_host_network_receive_bytes_total"
SENT = "trackside_host_network_transmit_bytes_total"
PROCESS_MEMORY = "trackside_process_resident_memory_bytes"
MAJOR_FAULTS = "trackside_process_major_page_faults_total"
WORKERS = "trackside_dataloader_workers"

GPUS = (
    UTILIZATION,
    BUSY,
    SM_ACTIVE,
    TENSOR_ACTIVE,
    GPU_MEMORY,
    GPU_MEMORY_USED,
    GPU_POWER,
    GPU_ENERGY,
    CLOCK,
    CLOCK_LIMIT,
)
HOST = (CPU, CPUS, MEMORY, MEMORY_AVAILABLE, DISK_READ, DISK_WRITTEN, RECEIVED, SENT, CPU_ENERGY)
STALLS = (MEMORY_STALLED, IO_STALLED, SWAPPED_IN, CGROUP_STALLED, CPU_LIMITED)
CGROUPS = (CPU_LIMIT, CGROUP_MEMORY, CGROUP_MEMORY_LIMIT)
PROCESSES = (PROCESS_CPU, WORKER_CPU, CHILD_CPU, PROCESS_MEMORY, MAJOR_FAULTS, WORKERS, CPU_WAIT)
JOINS = (GPU_INFO, RANK_INFO, PROCESS_INFO)
FAMILIES = (*GPUS, *HOST, *STALLS, *CGROUPS, *PROCESSES, *JOINS)

USAGE = (UTILIZATION, GPU_MEMORY_USED, GPU_ENERGY, CPU_ENERGY, PROCESS_MEMORY, *JOINS)

HOT = frozenset(("hw_slowdown", "hw_thermal", "hw_power_brake", "sw_thermal"))  # limits that are a fault, not a setting
_UNREAD = ('domain="memory"', 'domain="video"', 'domain="graphics"', 'mode="idle"', 'mode="iowait"', 'mode="steal"')


def is_read(series: str) -> bool:
    """Return whether a diagnosis reads a series of these families, by its name with labels."""
    if series.startswith(CLOCK_LIMIT):
        return any(f'reason="{reason}"' in series for reason in HOT)
    return not any(label in series for label in _UNREAD)
