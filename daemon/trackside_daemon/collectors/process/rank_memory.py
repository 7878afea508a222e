"""What the process of a rank takes of the machine, its own and not that of its children."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from trackside_daemon.collectors.kernel_files import read
from trackside_daemon.model.metric import Metric, Sample

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from trackside_daemon.collectors.process.process_names import Life
    from trackside_daemon.collectors.process.process_tree import Stat

LATER_SECONDS = 10.0
"""How often it is read again what seldom changes, or costs much."""

MANY = 1000
"""With more open files than these the next count of them waits, where each must be listed to be counted."""

STATES = {"R": "R", "S": "S", "D": "D", "Z": "Z", "T": "T", "t": "T", "I": "S", "X": "Z"}
"""The state that is shown for each of the kernel's."""


def _family(name: str, says: str, labels: tuple[str, ...] = (), *, unit: str = "", kind: str = "gauge") -> Metric:
    suffix = {"gauge": "", "counter": "_total"}[kind]
    return Metric(f"trackside_process_{name}{suffix}", kind, f"{says}.", ("pid", *labels), unit)  # type: ignore[arg-type]


def _memory(name: str, field: str, says: str) -> Metric:
    return _family(f"{name}_memory_bytes", f"{says}, from /proc/PID/status {field}", unit="bytes")


MEMORY = {
    b"VmRSS": _memory("resident", "VmRSS", "Memory of the rank's process in RAM"),
    b"RssAnon": _memory("anonymous", "RssAnon", "Memory of the rank's process in RAM that no file backs"),
    b"RssFile": _memory("file", "RssFile", "Files that the rank's process has mapped, as far as they are in RAM"),
    b"RssShmem": _memory(
        "shared", "RssShmem", "Shared memory that the rank's process has mapped, as far as it is in RAM"
    ),
    b"VmSwap": _memory("swap", "VmSwap", "Memory of the rank's process in swap"),
    b"VmHWM": _memory("peak_resident", "VmHWM", "The most memory that the rank's process ever had in RAM"),
}
SWITCHES = _family(
    "context_switches",
    "Times that the rank's main thread gave its CPU up (voluntary), or that it was taken away (involuntary), from "
    "/proc/PID/status",
    ("kind",),
    kind="counter",
)
KINDS = {b"voluntary_ctxt_switches": "voluntary", b"nonvoluntary_ctxt_switches": "involuntary"}
CPU = _family(
    "cpu_seconds",
    "CPU time of all threads of the rank's process, without its children, from /proc/PID/stat",
    ("mode",),
    unit="seconds",
    kind="counter",
)
FAULTS = _family(
    "major_page_faults",
    "Page faults of the rank's process that had to read from disk, from /proc/PID/stat majflt",
    kind="counter",
)
THREADS = _family("threads", "Threads of the rank's process, from /proc/PID/stat")
STARTED = _family(
    "start_time_seconds", "Unix time at which the rank's process began, from /proc/PID/stat", unit="seconds"
)
STATE = _family(
    "state",
    "1 for the state that the rank's main thread is in, else 0, from /proc/PID/stat: R running, S sleeping, D waits for a "
    "device or a file system, Z dead and not waited for, T stopped",
    ("state",),
)
OPEN_FDS = _family("open_fds", "Open file descriptors of the rank's process, from /proc/PID/fd")
MAX_FDS = _family("max_fds", "Soft limit of open file descriptors of the rank's process, from /proc/PID/limits")
_IO = "from /proc/PID/io {}; children that it has waited for are included"
IO = {
    b"read_bytes": _family(
        "read_bytes", f"Read from disk by the rank's process, {_IO.format('read_bytes')}", unit="bytes", kind="counter"
    ),
    b"write_bytes": _family(
        "written_bytes",
        f"Sent to disk by the rank's process, {_IO.format('write_bytes')}",
        unit="bytes",
        kind="counter",
    ),
    b"rchar": _family(
        "read_chars", f"Bytes that read calls returned, from caches too, {_IO.format('rchar')}", kind="counter"
    ),
    b"wchar": _family("written_chars", f"Bytes given to write calls, {_IO.format('wchar')}", kind="counter"),
}
WAITED = _family(
    "cpu_wait_seconds",
    "Time that the rank's main thread could run and waited for a CPU, from /proc/PID/schedstat",
    unit="seconds",
    kind="counter",
)


class Own:
    """Reads it of one rank after another; what the kernel does not tell this user is left out.

    Args:
        proc: Where the kernel's process files are.
    """

    metrics = (
        *MEMORY.values(),
        *(CPU, THREADS, OPEN_FDS, MAX_FDS, *IO.values(), SWITCHES, WAITED, FAULTS, STARTED, STATE),
    )

    def __init__(self, proc: Path) -> None:
        self._proc = str(proc)
        self._tick = os.sysconf("SC_CLK_TCK")
        self._boot = _boot_time(self._proc)
        self._counts = _size(f"{proc}/self/fd") > 0
        self._fds: dict[Life, tuple[float, int]] = {}
        self._limits: dict[Life, tuple[float, int | None]] = {}

    def started(self, process: Stat) -> float | None:
        """When it began, in Unix seconds; None when the boot's time is not known."""
        return None if self._boot is None else self._boot + process.start / self._tick

    def samples(self, rank: Stat, now: float) -> Iterator[Sample]:
        """All of one rank; *now* is in seconds of the monotonic clock."""
        place, label = f"{self._proc}/{rank.pid}", str(rank.pid)
        yield from self._of_stat(rank, label)
        status = _numbers(f"{place}/status", {*MEMORY, *KINDS})
        for field, amount in status.items():
            if field in MEMORY:
                yield Sample(MEMORY[field], (label,), amount * 1024)
            else:
                yield Sample(SWITCHES, (label, KINDS[field]), amount)
        for field, amount in _numbers(f"{place}/io", IO).items():
            yield Sample(IO[field], (label,), amount)
        schedule = _text(f"{place}/schedstat").split()
        if len(schedule) > 1 and schedule[1].isdigit():
            yield Sample(WAITED, (label,), int(schedule[1]) / 1e9)
        yield from self._of_files(rank.life, place, label, now)

    def keep(self, lives: Collection[Life]) -> None:
        """Forget all but these."""
        self._fds = {life: self._fds[life] for life in lives if life in self._fds}
        self._limits = {life: self._limits[life] for life in lives if life in self._limits}

    def _of_stat(self, rank: Stat, label: str) -> Iterator[Sample]:
        yield Sample(CPU, (label, "user"), rank.user / self._tick)
        yield Sample(CPU, (label, "system"), rank.system / self._tick)
        yield Sample(FAULTS, (label,), rank.major_faults)
        yield Sample(THREADS, (label,), rank.threads)
        if (started := self.started(rank)) is not None:
            yield Sample(STARTED, (label,), started)
        now = STATES.get(rank.state)
        for state in dict.fromkeys(STATES.values()) if now else ():
            yield Sample(STATE, (label, state), float(state == now))

    def _of_files(self, life: Life, place: str, label: str, now: float) -> Iterator[Sample]:
        count = self._count(life, f"{place}/fd", now)
        if count is not None:
            yield Sample(OPEN_FDS, (label,), count)
        due, limit = self._limits.get(life, (now, None))
        if now >= due:
            limit = _limit(f"{place}/limits")
            self._limits[life] = now + LATER_SECONDS, limit
        if limit is not None:
            yield Sample(MAX_FDS, (label,), limit)

    def _count(self, life: Life, directory: str, now: float) -> int | None:
        """Open files: the directory's size since Linux 6.2, before it what is listed."""
        if self._counts:
            size = _size(directory)
            return size if size >= 0 else None
        due, count = self._fds.get(life, (now, 0))
        if now < due:
            return count
        try:
            count = len(os.listdir(directory))  # noqa: PTH208  only counted
        except OSError:
            return None
        self._fds[life] = now + (LATER_SECONDS if count > MANY else 0.0), count
        return count


def _text(path: str) -> bytes:
    """A file of a process; empty when the process is gone, or the file is not for this user."""
    try:
        return read(path)
    except OSError:
        return b""


def _numbers(path: str, wanted: Collection[bytes]) -> dict[bytes, int]:
    """The fields of a file with a line ``name: number`` each that are *wanted*."""
    found = {}
    for line in _text(path).split(b"\n"):
        name, _, rest = line.partition(b":")
        if name in wanted and (number := rest.split(None, 1)) and number[0].isdigit():
            found[name] = int(number[0])
    return found


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
