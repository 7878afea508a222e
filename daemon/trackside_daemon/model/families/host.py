"""The families of the host: CPU, memory, pressure, disks, network, file systems and time."""

from trackside_daemon.model.metric import Metric, define

CPU_SECONDS = define(
    "trackside_host_cpu_seconds_total",
    "CPU time by mode, summed over all CPUs, from /proc/stat; user and nice include guest time.",
    "mode",
)
CPU_CORE_SECONDS = define(
    "trackside_host_cpu_core_seconds_total",
    "CPU time of each CPU by mode, when collector.cpu.per-cpu is set, from /proc/stat; user and nice include guest time.",
    "cpu",
    "mode",
)
CPUS = define("trackside_host_cpus", "Online CPUs of the host, from /proc/stat.")
STAT_NUMBERS = {
    b"ctxt ": define("trackside_host_context_switches_total", "Context switches, from /proc/stat ctxt."),
    b"procs_running ": define(
        "trackside_host_procs_running", "Tasks that run or wait for a CPU, from /proc/stat procs_running."
    ),
    b"procs_blocked ": define(
        "trackside_host_procs_blocked", "Tasks that wait for I/O to complete, from /proc/stat procs_blocked."
    ),
}

LOADS = tuple(
    define(
        f"trackside_host_load{minutes}",
        f"Average over {minutes} min of tasks that run, wait for a CPU or sleep uninterruptibly, from /proc/loadavg.",
    )
    for minutes in (1, 5, 15)
)
HUNG_TASKS = define(
    "trackside_host_hung_tasks_total",
    "Tasks that slept uninterruptibly for longer than the kernel's limit, from /proc/sys/kernel/hung_task_detect_count.",
)

CPU_TEMPERATURE = define(
    "trackside_host_cpu_temperature_celsius",
    "Temperature of a CPU's sensor, from /sys/class/hwmon tempN_input; sensor is its tempN_label where it has one.",
    "chip",
    "sensor",
)
CPU_ENERGY = define(
    "trackside_host_cpu_energy_joules_total",
    "Energy of a CPU package, Intel or AMD, from /sys/class/powercap intel-rapl:N energy_uj.",
    "package",
)


def _memory(name: str, field: str, text: str) -> Metric:
    return define(f"trackside_host_{name}_bytes", f"{text}, from /proc/meminfo {field}.")


MEMORY = _memory("memory", "MemTotal", "Memory that the kernel can use")
MEMORY_AVAILABLE = _memory("memory_available", "MemAvailable", "Memory available to programs without swapping")
MEMINFO = {
    "MemTotal": MEMORY,
    "MemAvailable": MEMORY_AVAILABLE,
    "MemFree": _memory("memory_free", "MemFree", "Unused memory, not even used as a cache"),
    "Buffers": _memory("memory_buffers", "Buffers", "Cached blocks of devices"),
    "Cached": _memory("memory_cached", "Cached", "Cached files, shared memory and tmpfs"),
    "Shmem": _memory(
        "memory_shmem", "Shmem", "Shared memory and tmpfs, through which data loader workers pass batches"
    ),
    "Dirty": _memory(
        "memory_dirty", "Dirty", "Bytes written to files but not to disk yet; for example after a checkpoint"
    ),
    "Writeback": _memory("memory_writeback", "Writeback", "Bytes that are being written to disk"),
    "AnonPages": _memory("memory_anonymous", "AnonPages", "Memory of processes that is not backed by files"),
    "SwapTotal": _memory("swap", "SwapTotal", "Swap space"),
}
SWAP_USED = _memory("swap_used", "SwapTotal - SwapFree", "Used swap space")


def _event(name: str, field: str, text: str) -> Metric:
    return define(f"trackside_host_{name}_total", f"{text}, from /proc/vmstat {field}.")


SWAP_IN = _event("swap_in_pages", "pswpin", "Pages read from swap")
VMSTAT = {
    "oom_kill": _event("oom_kills", "oom_kill", "Processes that the kernel killed for lack of memory"),
    "pgmajfault": _event("major_page_faults", "pgmajfault", "Page faults that needed a read from disk"),
    "pgfault": _event("page_faults", "pgfault", "Page faults, including major ones"),
    "pswpin": SWAP_IN,
    "pswpout": _event("swap_out_pages", "pswpout", "Pages written to swap"),
}


def _pressure(resource: str, how: str, text: str, line: str) -> Metric:
    return define(
        f"trackside_host_pressure_{resource}_{how}_seconds_total",
        f"Time in which {text}, from /proc/pressure/{resource} {line}.",
    )


def _waiting(resource: str, noun: str) -> Metric:
    return _pressure(resource, "waiting", f"at least one task waited for {noun}", "some")


def _stalled(resource: str, noun: str) -> Metric:
    return _pressure(resource, "stalled", f"all non-idle tasks waited for {noun}", "full")


CPU_WAITING = _waiting("cpu", "a CPU")
IO_WAITING, IO_STALLED = _waiting("io", "I/O"), _stalled("io", "I/O")
MEMORY_WAITING, MEMORY_STALLED = _waiting("memory", "memory"), _stalled("memory", "memory")
# The line "full" of cpu has no meaning for a whole host.
PRESSURE = {
    "cpu": {b"some": CPU_WAITING},
    "io": {b"some": IO_WAITING, b"full": IO_STALLED},
    "memory": {b"some": MEMORY_WAITING, b"full": MEMORY_STALLED},
    "irq": {b"full": _pressure("irq", "stalled", "interrupts kept a task from its CPU", "full")},
}


def _disk(name: str, text: str) -> Metric:
    return define(f"trackside_host_disk_{name}", f"{text}, from /proc/diskstats.", "device")


DISK_READ = _disk("read_bytes_total", "Bytes read")
DISK_WRITTEN = _disk("written_bytes_total", "Bytes written")
DISK_BUSY = _disk("io_time_seconds_total", "Time in which at least one operation was in progress")
# By column of a line.
DISKSTATS = {
    3: _disk("reads_completed_total", "Completed reads"),
    5: DISK_READ,
    6: _disk("read_time_seconds_total", "Total duration of all reads"),
    7: _disk("writes_completed_total", "Completed writes"),
    9: DISK_WRITTEN,
    10: _disk("write_time_seconds_total", "Total duration of all writes"),
    11: define("trackside_host_disk_io_now", "Operations in progress, from /proc/diskstats.", "device"),
    12: DISK_BUSY,
    13: _disk("io_time_weighted_seconds_total", "Total duration of all operations, including those in progress"),
}

_NETWORK = ("device",)


def _network(name: str, text: str) -> Metric:
    return define(f"trackside_host_network_{name}_total", f"{text}, from /proc/net/dev.", *_NETWORK)


NETWORK_RECEIVED = _network("receive_bytes", "Bytes received")
NETWORK_SENT = _network("transmit_bytes", "Bytes sent")
# By column after a device's name.
NET_DEV = {
    0: NETWORK_RECEIVED,
    1: _network("receive_packets", "Packets received"),
    2: _network("receive_errs", "Packets received with an error"),
    3: _network("receive_drop", "Packets received and dropped, for example for lack of buffers"),
    8: NETWORK_SENT,
    9: _network("transmit_packets", "Packets sent"),
    10: _network("transmit_errs", "Packets not sent because of an error"),
    11: _network("transmit_drop", "Packets dropped instead of sent"),
}
NETWORK_UP = define("trackside_host_network_up", "1 when /sys/class/net/DEVICE/operstate is up, else 0.", *_NETWORK)
NETWORK_CARRIER_CHANGES = define(
    "trackside_host_network_carrier_changes_total",
    "Times that the link went up or down, from /sys/class/net/DEVICE/carrier_changes.",
    *_NETWORK,
)
NETWORK_SPEED = define(
    "trackside_host_network_speed_bytes_per_second",
    "Speed of the link in one direction; absent where unknown, from /sys/class/net/DEVICE/speed.",
    *_NETWORK,
)

_FILESYSTEM = ("mountpoint", "fstype")


def _filesystem(name: str, text: str) -> Metric:
    return define(f"trackside_host_filesystem_{name}", text, *_FILESYSTEM)


FILESYSTEM_SIZE = _filesystem(
    "size_bytes", "Size of the file system, from statvfs(3) f_blocks; absent when it has no fixed size."
)
FILESYSTEM_FREE = _filesystem("free_bytes", "Unused bytes, including those reserved for root, from statvfs(3) f_bfree.")
FILESYSTEM_AVAIL = _filesystem(
    "avail_bytes", "Unused bytes that users other than root can use, from statvfs(3) f_bavail."
)
FILESYSTEM_FILES = _filesystem(
    "files", "Inodes, from statvfs(3) f_files; absent where the file system does not count them."
)
FILESYSTEM_FILES_FREE = _filesystem("files_free", "Unused inodes, from statvfs(3) f_ffree.")
FILESYSTEM_READONLY = _filesystem(
    "readonly", "1 when the file system is mounted read-only, from /proc/PID/mountinfo, else 0."
)
FILESYSTEM_DEVICE_ERROR = _filesystem(
    "device_error",
    "1 when statvfs(3) fails or has not returned for 5 s, else 0; absent where the daemon's user has no permission.",
)

TIME = define("trackside_host_time_seconds", "Unix time of the host at the time of the sample, from time(2).")
BOOT_TIME = define(
    "trackside_host_boot_time_seconds",
    "Unix time of the host's boot, from /proc/stat btime; it changes when the clock is stepped.",
)
TIME_OFFSET = define(
    "trackside_host_time_offset_seconds",
    "Offset of the clock as reported to the kernel, from adjtimex(2) offset; 0 with chronyd, which does not report it.",
)
TIME_SYNCHRONIZED = define(
    "trackside_host_time_synchronized",
    "1 when the clock is synchronized to a reliable server, else 0, from adjtimex(2).",
)
UNAME = define(
    "trackside_host_uname_info",
    "The host's kernel and name, from uname(2).",
    *("sysname", "release", "version", "machine", "nodename"),
)
