"""The families of the processes of a training: ranks, their data loader workers and their other children."""

from trackside_daemon.model.metric import Metric, define

PROCESS_INFO = define(
    "trackside_process_info",
    "A process that is a rank, or that NVML lists on a GPU; a process that a rank started has the rank's labels, and role "
    "dataloader by its name, else other; from /proc/PID/status and /proc/PID/cgroup; sampled by the daemon's tick.",
    *("pid", "role", "comm", "user", "run", "run_id", "rank", "local_rank", "job_id", "k8s_pod", "k8s_namespace"),
    *("k8s_container", "container_id", "cgroup"),
)


def _family(name: str, text: str, *labels: str) -> Metric:
    return define(f"trackside_process_{name}", f"{text}.", "pid", *labels)


def _memory(name: str, field: str, text: str) -> Metric:
    return _family(f"{name}_memory_bytes", f"{text}, from /proc/PID/status {field}")


RESIDENT = _memory("resident", "VmRSS", "Memory of the rank's process in RAM")
ANONYMOUS = _memory("anonymous", "RssAnon", "Memory of the rank's process in RAM that is not backed by files")
SHARED = _memory("shared", "RssShmem", "Mapped shared memory of the rank's process, the part in RAM")
MEMORY = {
    b"VmRSS": RESIDENT,
    b"RssAnon": ANONYMOUS,
    b"RssFile": _memory("file", "RssFile", "Mapped files of the rank's process, the part in RAM"),
    b"RssShmem": SHARED,
    b"VmSwap": _memory("swap", "VmSwap", "Memory of the rank's process in swap"),
    b"VmHWM": _memory("peak_resident", "VmHWM", "Largest memory of the rank's process in RAM so far"),
}
CONTEXT_SWITCHES = _family(
    "context_switches_total",
    "Context switches of the rank's main thread, voluntary or involuntary, from /proc/PID/status voluntary_ctxt_switches "
    "and nonvoluntary_ctxt_switches",
    "kind",
)
CPU = _family(
    "cpu_seconds_total",
    "CPU time of all threads of the rank's process, without its children, from /proc/PID/stat utime and stime",
    "mode",
)
MAJOR_FAULTS = _family(
    "major_page_faults_total",
    "Page faults of the rank's process that needed a read from disk, from /proc/PID/stat majflt",
)
THREADS = _family("threads", "Threads of the rank's process, from /proc/PID/stat num_threads")
START_TIME = _family(
    "start_time_seconds", "Unix time at which the rank's process started, from /proc/PID/stat starttime"
)
STATE = _family(
    "state",
    "1 for the current state of the rank's main thread, else 0, from /proc/PID/stat: R running, S sleeping, D waiting for "
    "a device or a file system, Z dead and not reaped, T stopped",
    "state",
)
OPEN_FDS = _family("open_fds", "Open file descriptors of the rank's process, from /proc/PID/fd")
MAX_FDS = _family("max_fds", "Soft limit of open file descriptors of the rank's process, from /proc/PID/limits")
_IO = "from /proc/PID/io {}, including children that it has reaped"
READ = _family(
    "read_bytes_total",
    f"Bytes read from disk by the rank's process, {_IO.format('read_bytes')}",
)
WRITTEN = _family(
    "written_bytes_total",
    f"Bytes written to disk by the rank's process, {_IO.format('write_bytes')}",
)
IO = {
    b"read_bytes": READ,
    b"write_bytes": WRITTEN,
    b"rchar": _family(
        "read_chars_total",
        f"Bytes returned by read calls, including those from caches, {_IO.format('rchar')}",
    ),
    b"wchar": _family("written_chars_total", f"Bytes passed to write calls, {_IO.format('wchar')}"),
}
CPU_WAIT = _family(
    "cpu_wait_seconds_total",
    "Time in which the rank's main thread was runnable and waited for a CPU, from /proc/PID/schedstat",
)

UNIQUE_MEMORY = define(
    "trackside_process_unique_memory_bytes",
    "Memory in RAM that no other process shares with the rank's process (USS), from /proc/PID/smaps_rollup; with "
    "collector.process.smaps.",
    "pid",
)
PROPORTIONAL_MEMORY = define(
    "trackside_process_proportional_memory_bytes",
    "Memory in RAM of the rank's process, with its share of shared memory (PSS), from /proc/PID/smaps_rollup; with "
    "collector.process.smaps.",
    "pid",
)

_RANK = ("run", "rank")
_SHARED = "memory that a fork shares with its rank counts for each worker"
_STATM = "from /proc/PID/statm"
WORKERS = define(
    "trackside_dataloader_workers",
    "Data loader workers below the rank; named pt_data_worker by PyTorch 2.5 and later, from /proc/PID/stat.",
    *_RANK,
)
WORKERS_RESIDENT = define(
    "trackside_dataloader_resident_memory_bytes", f"Memory of all workers in RAM; {_SHARED}; {_STATM} resident.", *_RANK
)
WORKERS_ANONYMOUS = define(
    "trackside_dataloader_anonymous_memory_bytes",
    f"Memory of all workers in RAM that is not backed by files; {_SHARED}; {_STATM} resident minus shared.",
    *_RANK,
)
WORKERS_SHARED = define(
    "trackside_dataloader_shared_memory_bytes",
    f"Mapped files and shared memory of all workers in RAM, counted for each worker, {_STATM} shared.",
    *_RANK,
)
WORKERS_CPU = define(
    "trackside_dataloader_cpu_seconds_total",
    "CPU time of all workers, including ended ones, from /proc/PID/stat; a worker's use after the last tick that saw it is "
    "missing, which is much of it when an epoch takes only a few ticks.",
    *_RANK,
)
WORKERS_READ = define(
    "trackside_dataloader_read_bytes_total",
    "Bytes read from disk by all workers, including ended ones, from /proc/PID/io read_bytes.",
    *_RANK,
)
WORKERS_BLOCKED = define(
    "trackside_dataloader_blocked_workers",
    "Workers that wait for a device or a file system, from /proc/PID/stat: state D.",
    *_RANK,
)
CHILDREN = define(
    "trackside_process_children",
    "Processes below the rank's, at all depths, that are neither ranks nor data loader workers, from "
    "/proc/PID/task/TID/children.",
    "pid",
)
CHILDREN_RESIDENT = define(
    "trackside_process_children_resident_memory_bytes",
    "Memory in RAM of the processes below the rank's; that are neither ranks nor workers, from /proc/PID/stat rss.",
    "pid",
)
CHILDREN_CPU = define(
    "trackside_process_children_cpu_seconds_total",
    "CPU time of the processes below the rank's; that are neither ranks nor workers, including ended ones, from "
    "/proc/PID/stat.",
    "pid",
)

WORKER_DEATHS = define(
    "trackside_dataloader_deaths_total",
    "Data loader workers that died, by cause; a signal such as SIGBUS, OOM (SIGKILL soon after an oom_kill of their "
    "cgroup), or exit with a status other than 0, from their pidfd or /proc/PID/stat exit_code.",
    *("run", "rank", "cause"),
)
