"""Metric families of cgroups."""

from trackside_daemon.model.metric import Metric, define

# The cgroup's path in /proc/PID/cgroup; with v1, its path in the hierarchy of the memory controller. With v1, values of
# the other hierarchies belong to the process's cgroup there, which may contain more processes.
SUBJECT = ("cgroup",)


def _memory(name: str, text: str, v2: str, v1: str) -> Metric:
    source = f"{v2} of cgroup v2" + (f" or {v1} of v1" if v1 else "")
    return define(f"trackside_cgroup_memory_{name}_bytes", f"{text}, from {source}.", *SUBJECT)


def _cpu(name: str, text: str) -> Metric:
    source = (
        "from cpu.stat of the cgroup with the smallest limit, this one or one above it; the count continues when another "
        "becomes the smallest"
    )
    return define(f"trackside_cgroup_cpu_{name}_total", f"{text}, {source}.", *SUBJECT)


def _pressure(name: str, text: str, line: str) -> Metric:
    help_text = f"{text}, from {line} of cpu.pressure, io.pressure and memory.pressure of cgroup v2."
    labels = (*SUBJECT, "resource")
    return define(f"trackside_cgroup_pressure_{name}_seconds_total", help_text, *labels)


LIMIT = _memory(
    "limit",
    "Memory limit above which the OOM killer runs; the smallest of the cgroup and those above it",
    "memory.max",
    "memory.limit_in_bytes and memory.stat hierarchical_memory_limit",
)
LIMIT_USED = _memory(
    "limit_used",
    "Memory in use under the smallest limit; by the cgroup that has it and all below, including processes of others",
    "memory.current",
    "memory.usage_in_bytes",
)
HIGH = _memory(
    "high",
    "Memory above which the kernel slows the cgroup down; the smallest of the cgroup and those above it",
    "memory.high",
    "",
)
USED = _memory("used", "Memory in use, including cached files", "memory.current", "memory.usage_in_bytes")
PEAK = _memory("peak", "Largest memory use so far", "memory.peak", "memory.max_usage_in_bytes")
WORKING_SET = _memory(
    "working_set",
    "Memory in use without inactive cached files",
    "memory.current and memory.stat inactive_file",
    "memory.usage_in_bytes and memory.stat total_inactive_file",
)
UNRECLAIMABLE = _memory(
    "unreclaimable",
    "Memory in use without what the kernel reclaims before it kills; active and inactive cached files, and reclaimable"
    " slab caches with v2",
    "memory.current and memory.stat active_file, inactive_file and slab_reclaimable",
    "memory.usage_in_bytes and memory.stat total_active_file and total_inactive_file",
)
ANONYMOUS = _memory(
    "anonymous", "Memory of processes that is not backed by files", "memory.stat anon", "memory.stat total_rss"
)
FILE = _memory("file", "Cached files, shared memory and tmpfs", "memory.stat file", "memory.stat total_cache")
SHMEM = _memory(
    "shmem",
    "Shared memory and tmpfs, through which data loader workers pass batches",
    "memory.stat shmem",
    "memory.stat total_shmem",
)
SWAP = _memory("swap_used", "Swap in use", "memory.swap.current", "memory.stat total_swap")
EVENTS = define(
    "trackside_cgroup_memory_events_total",
    "Memory events: thresholds exceeded and their consequences, from memory.events of cgroup v2 or memory.failcnt and "
    "memory.oom_control of v1.",
    *SUBJECT,
    "event",
)
OOM_KILLS = define(
    "trackside_cgroup_oom_kills_total",
    "Processes killed by the OOM killer, from memory.events of cgroup v2 or memory.oom_control of v1; served for 15 "
    "minutes after the cgroup is gone, with its last kills from the count above it or /proc/vmstat, which may include a "
    "neighbour's; continued when a cgroup of the same name appears.",
    *SUBJECT,
)
CPU_LIMIT = define(
    "trackside_cgroup_cpu_limit_cores",
    "Limit of CPU time per second; the smallest of the cgroup and those above it, from cpu.max of cgroup v2 or "
    "cpu.cfs_quota_us and cpu.cfs_period_us of v1.",
    *SUBJECT,
)
CPU_SECONDS = define(
    "trackside_cgroup_cpu_seconds_total",
    "CPU time by mode, from cpu.stat of cgroup v2 or cpuacct.stat of v1.",
    *SUBJECT,
    "mode",
)
THROTTLED = _cpu("throttled_seconds", "Time in which the CPU limit kept tasks from running")
THROTTLED_PERIODS = _cpu("throttled_periods", "Periods in which the CPU limit was reached")
PERIODS = _cpu("periods", "Periods of the CPU limit with runnable tasks")
WAITING = _pressure("waiting", "Time in which at least one task waited for the resource", "some")
STALLED = _pressure("stalled", "Time in which all non-idle tasks waited for the resource", "full")
PROCESSES = define("trackside_cgroup_processes", "Processes and threads, from pids.current of the cgroup.", *SUBJECT)
PROCESSES_LIMIT = define(
    "trackside_cgroup_processes_limit",
    "Limit of processes and threads; the smallest pids.max of the cgroup and those above it.",
    *SUBJECT,
)
