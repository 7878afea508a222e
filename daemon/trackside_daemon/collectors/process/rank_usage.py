"""Read memory, CPU time, I/O and files of a rank's process, without those of its children."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from trackside_daemon.collectors.kernel_files import read
from trackside_daemon.model.metric import Metric, Sample

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from trackside_daemon.collectors.process.process_names import ProcessKey
    from trackside_daemon.collectors.process.process_tree import Stat

LATER_SECONDS = 10.0  # interval of reading values that seldom change or are expensive

# Number of open files above which they are listed only every `LATER_SECONDS`, on kernels that need a list to count.
MANY = 1000

# Exported state by state of the kernel.
STATES = {"R": "R", "S": "S", "D": "D", "Z": "Z", "T": "T", "t": "T", "I": "S", "X": "Z"}


def _family(name: str, text: str, labels: tuple[str, ...] = (), *, unit: str = "", kind: str = "gauge") -> Metric:
    suffix = {"gauge": "", "counter": "_total"}[kind]
    return Metric(f"trackside_process_{name}{suffix}", kind, f"{text}.", ("pid", *labels), unit)  # type: ignore[arg-type]


def _memory(name: str, field: str, text: str) -> Metric:
    return _family(f"{name}_memory_bytes", f"{text}, from /proc/PID/status {field}", unit="bytes")


MEMORY = {
    b"VmRSS": _memory("resident", "VmRSS", "Memory of the rank's process in RAM"),
    b"RssAnon": _memory("anonymous", "RssAnon", "Memory of the rank's process in RAM that is not backed by files"),
    b"RssFile": _memory("file", "RssFile", "Mapped files of the rank's process, the part in RAM"),
    b"RssShmem": _memory("shared", "RssShmem", "Mapped shared memory of the rank's process, the part in RAM"),
    b"VmSwap": _memory("swap", "VmSwap", "Memory of the rank's process in swap"),
    b"VmHWM": _memory("peak_resident", "VmHWM", "Largest memory of the rank's process in RAM so far"),
}
SWITCHES = _family(
    "context_switches",
    "Context switches of the rank's main thread, voluntary or involuntary, from /proc/PID/status voluntary_ctxt_switches "
    "and nonvoluntary_ctxt_switches",
    ("kind",),
    kind="counter",
)
KINDS = {b"voluntary_ctxt_switches": "voluntary", b"nonvoluntary_ctxt_switches": "involuntary"}
CPU = _family(
    "cpu_seconds",
    "CPU time of all threads of the rank's process, without its children, from /proc/PID/stat utime and stime",
    ("mode",),
    unit="seconds",
    kind="counter",
)
FAULTS = _family(
    "major_page_faults",
    "Page faults of the rank's process that needed a read from disk, from /proc/PID/stat majflt",
    kind="counter",
)
THREADS = _family("threads", "Threads of the rank's process, from /proc/PID/stat num_threads")
STARTED = _family(
    "start_time_seconds", "Unix time at which the rank's process started, from /proc/PID/stat starttime", unit="seconds"
)
STATE = _family(
    "state",
    "1 for the current state of the rank's main thread, else 0, from /proc/PID/stat: R running, S sleeping, D waiting for "
    "a device or a file system, Z dead and not reaped, T stopped",
    ("state",),
)
OPEN_FDS = _family("open_fds", "Open file descriptors of the rank's process, from /proc/PID/fd")
MAX_FDS = _family("max_fds", "Soft limit of open file descriptors of the rank's process, from /proc/PID/limits")
_IO = "from /proc/PID/io {}, including children that it has reaped"
IO = {
    b"read_bytes": _family(
        "read_bytes",
        f"Bytes read from disk by the rank's process, {_IO.format('read_bytes')}",
        unit="bytes",
        kind="counter",
    ),
    b"write_bytes": _family(
        "written_bytes",
        f"Bytes written to disk by the rank's process, {_IO.format('write_bytes')}",
        unit="bytes",
        kind="counter",
    ),
    b"rchar": _family(
        "read_chars",
        f"Bytes returned by read calls, including those from caches, {_IO.format('rchar')}",
        kind="counter",
    ),
    b"wchar": _family("written_chars", f"Bytes passed to write calls, {_IO.format('wchar')}", kind="counter"),
}
WAITED = _family(
    "cpu_wait_seconds",
    "Time in which the rank's main thread was runnable and waited for a CPU, from /proc/PID/schedstat",
    unit="seconds",
    kind="counter",
)


class RankUsage:
    """The resource use of rank processes; values that this user may not read are left out.

    Args:
        proc: Path of procfs.
    """

    metrics = (
        *MEMORY.values(),
        CPU,
        THREADS,
        OPEN_FDS,
        MAX_FDS,
        *IO.values(),
        SWITCHES,
        WAITED,
        FAULTS,
        STARTED,
        STATE,
    )

    def __init__(self, proc: Path) -> None:
        self._proc = str(proc)
        self._ticks_per_second = os.sysconf("SC_CLK_TCK")
        # Read once: btime changes when the clock is stepped, and every process would seem to have started at another
        # time.
        self._boot = _boot_time(self._proc)
        self._fd_size_is_count = _size(f"{proc}/self/fd") > 0
        self._fds: dict[ProcessKey, tuple[float, int]] = {}
        self._limits: dict[ProcessKey, tuple[float, int | None]] = {}

    def started(self, process: Stat) -> float | None:
        """Return when a process started, in Unix seconds; None when the boot time is unknown."""
        return None if self._boot is None else self._boot + process.start / self._ticks_per_second

    def samples(self, rank: Stat, now: float) -> Iterator[Sample]:
        """Yield the samples of one rank; *now* is in seconds of the monotonic clock."""
        directory = f"{self._proc}/{rank.pid}"
        label = str(rank.pid)
        yield from self._of_stat(rank, label)
        status = _numbers(f"{directory}/status", {*MEMORY, *KINDS})
        for field, amount in status.items():
            if field in MEMORY:
                yield Sample(MEMORY[field], (label,), amount * 1024)
            else:
                yield Sample(SWITCHES, (label, KINDS[field]), amount)
        for field, amount in _numbers(f"{directory}/io", IO).items():
            yield Sample(IO[field], (label,), amount)
        schedule = _text(f"{directory}/schedstat").split()
        if len(schedule) > 1 and schedule[1].isdigit():
            yield Sample(WAITED, (label,), int(schedule[1]) / 1e9)
        yield from self._of_files(rank.key, directory, label, now)

    def keep(self, keys: Collection[ProcessKey]) -> None:
        """Forget all processes except these."""
        self._fds = {key: self._fds[key] for key in keys if key in self._fds}
        self._limits = {key: self._limits[key] for key in keys if key in self._limits}

    def _of_stat(self, rank: Stat, label: str) -> Iterator[Sample]:
        yield Sample(CPU, (label, "user"), rank.user / self._ticks_per_second)
        yield Sample(CPU, (label, "system"), rank.system / self._ticks_per_second)
        yield Sample(FAULTS, (label,), rank.major_faults)
        yield Sample(THREADS, (label,), rank.threads)
        if (started := self.started(rank)) is not None:
            yield Sample(STARTED, (label,), started)
        current = STATES.get(rank.state)
        for state in dict.fromkeys(STATES.values()) if current else ():
            yield Sample(STATE, (label, state), float(state == current))

    def _of_files(self, key: ProcessKey, directory: str, label: str, now: float) -> Iterator[Sample]:
        count = self._count_files(key, f"{directory}/fd", now)
        if count is not None:
            yield Sample(OPEN_FDS, (label,), count)
        due, limit = self._limits.get(key, (now, None))
        if now >= due:
            limit = _limit(f"{directory}/limits")
            self._limits[key] = now + LATER_SECONDS, limit
        if limit is not None:
            yield Sample(MAX_FDS, (label,), limit)

    def _count_files(self, key: ProcessKey, directory: str, now: float) -> int | None:
        """Return the number of open files: since Linux 6.2 the size of /proc/PID/fd, before that the length of its list."""
        if self._fd_size_is_count:
            size = _size(directory)
            return size if size >= 0 else None
        due, count = self._fds.get(key, (now, 0))
        if now < due:
            return count
        try:
            count = len(os.listdir(directory))  # noqa: PTH208  only counted
        except OSError:
            return None
        self._fds[key] = now + (LATER_SECONDS if count > MANY else 0.0), count
        return count


def _text(path: str) -> bytes:
    """Return a file of a process; empty when the process is gone, or this user may not read the file."""
    try:
        return read(path)
    except OSError:
        return b""


def _numbers(path: str, wanted: Collection[bytes]) -> dict[bytes, int]:
    """Return the *wanted* fields of a file with lines ``name: number``, by name."""
    numbers = {}
    for line in _text(path).split(b"\n"):
        name, _, rest = line.partition(b":")
        if name in wanted and (number := rest.split(None, 1)) and number[0].isdigit():
            numbers[name] = int(number[0])
    return numbers


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116  as text
    except OSError:
        return -1


def _limit(path: str) -> int | None:
    for line in _text(path).split(b"\n"):
        if line.startswith(b"Max open files"):
            soft = line[len(b"Max open files") :].split()[0]
            return int(soft) if soft.isdigit() else None
    return None


def _boot_time(proc: str) -> float | None:
    for line in _text(f"{proc}/stat").splitlines():
        if line.startswith(b"btime "):
            return float(line.split()[1])
    return None
