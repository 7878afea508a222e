"""What is told of the cgroups that training runs in."""

from __future__ import annotations

from trackside_daemon.model.metric import Metric

SUBJECT = ("cgroup",)
"""The path of the cgroup in /proc/PID/cgroup; with v1, that in the hierarchy of its memory.

What the other hierarchies say, and v2 beside v1, is of the cgroup that the process has there, which may be a wider one.
"""


def _memory(name: str, says: str, v2: str, v1: str) -> Metric:
    text = f"{says}, from {v2} of cgroup v2" + (f" or {v1} of v1." if v1 else ".")
    return Metric(f"trackside_cgroup_memory_{name}_bytes", "gauge", text, SUBJECT, "bytes")


def _cpu(name: str, says: str, unit: str = "") -> Metric:
    text = f"{says}, from cpu.stat of the cgroup that has the smallest limit, the own one or one above it, counted on when that changes."
    return Metric(f"trackside_cgroup_cpu_{name}_total", "counter", text, SUBJECT, unit)


def _pressure(name: str, says: str, kind: str) -> Metric:
    text = f"{says}, from {kind} of cpu.pressure, io.pressure and memory.pressure of the cgroup of v2."
    return Metric(f"trackside_cgroup_pressure_{name}_seconds_total", "counter", text, (*SUBJECT, "resource"), "seconds")


LIMIT = _memory(
    "limit",
    "Memory above which the OOM killer comes, the smallest limit of the cgroup and of those above it",
    "memory.max",
    "memory.limit_in_bytes and memory.stat hierarchical_memory_limit",
)
LIMIT_USED = _memory(
    "limit_used",
    "Memory in use of that limit, by the cgroup that has it and all below, others' processes among them",
    "memory.current",
    "memory.usage_in_bytes",
)
HIGH = _memory(
    "high", "Memory above which the cgroup is slowed down, the smallest of it and of those above", "memory.high", ""
)
USED = _memory("used", "Memory in use, cached files included", "memory.current", "memory.usage_in_bytes")
PEAK = _memory("peak", "The most memory that was ever in use", "memory.peak", "memory.max_usage_in_bytes")
WORKING_SET = _memory(
    "working_set",
    "Memory in use less cached files that are seldom read",
    "memory.current and memory.stat inactive_file",
    "memory.usage_in_bytes and memory.stat total_inactive_file",
)
UNRECLAIMABLE = _memory(
    "unreclaimable",
    "Memory in use less what the kernel drops before it kills: cached files, also those that are often read, and its own "
    "caches where it counts them",
    "memory.current and memory.stat active_file, inactive_file and slab_reclaimable",
    "memory.usage_in_bytes and memory.stat total_active_file and total_inactive_file",
)
ANONYMOUS = _memory("anonymous", "Memory of processes that no file backs", "memory.stat anon", "memory.stat total_rss")
FILE = _memory("file", "Cached files, shared memory and tmpfs", "memory.stat file", "memory.stat total_cache")
SHMEM = _memory(
    "shmem",
    "Shared memory and tmpfs, where data loader workers pass their batches",
    "memory.stat shmem",
    "memory.stat total_shmem",
)
SWAP = _memory("swap_used", "Swap in use", "memory.swap.current", "memory.stat total_swap")
EVENTS = Metric(
    "trackside_cgroup_memory_events_total",
    "counter",
    "How often memory went over a threshold, and what came of it, from memory.events of cgroup v2 or memory.failcnt and "
    "memory.oom_control of v1.",
    (*SUBJECT, "event"),
)
OOM_KILLS = Metric(
    "trackside_cgroup_oom_kills_total",
    "counter",
    "Processes that the OOM killer has killed, from memory.events of cgroup v2 or memory.oom_control of v1; of a cgroup "
    "that is gone for 15 minutes more, its last kills by the count above it or /proc/vmstat, which may be a neighbour's; "
    "one that comes again under its name counts on.",
    SUBJECT,
)
CPU_LIMIT = Metric(
    "trackside_cgroup_cpu_limit_cores",
    "gauge",
    "CPU time that may be used in each second, the smallest limit of the cgroup and of those above it, from cpu.max of "
    "cgroup v2 or cpu.cfs_quota_us and cpu.cfs_period_us of v1.",
    SUBJECT,
    "cores",
)
CPU_SECONDS = Metric(
    "trackside_cgroup_cpu_seconds_total",
    "counter",
    "CPU time by mode, from cpu.stat of cgroup v2 or cpuacct.stat of v1.",
    (*SUBJECT, "mode"),
    "seconds",
)
THROTTLED = _cpu("throttled_seconds", "How long CPUs were withheld because the limit was reached", "seconds")
THROTTLED_PERIODS = _cpu("throttled_periods", "Periods of the limit in which it was reached")
PERIODS = _cpu("periods", "Periods of the limit in which there was something to run")
WAITING = _pressure("waiting", "How long some task waited for the resource", "some")
STALLED = _pressure("stalled", "How long all tasks that were not idle waited for the resource", "full")
PROCESSES = Metric(
    "trackside_cgroup_processes", "gauge", "Processes and threads, from pids.current of the cgroup.", SUBJECT
)
PROCESSES_LIMIT = Metric(
    "trackside_cgroup_processes_limit",
    "gauge",
    "Processes and threads that there may be, from pids.max of the cgroup and of those above it, the smallest.",
    SUBJECT,
)

FAMILIES = (
    *(LIMIT, LIMIT_USED, HIGH, USED, PEAK, WORKING_SET, UNRECLAIMABLE, ANONYMOUS, FILE, SHMEM, SWAP, EVENTS, OOM_KILLS),
    *(CPU_LIMIT, CPU_SECONDS, THROTTLED, THROTTLED_PERIODS, PERIODS),
    *(WAITING, STALLED, PROCESSES, PROCESSES_LIMIT),
)
