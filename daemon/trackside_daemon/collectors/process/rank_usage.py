"""Read memory, CPU time, I/O and files of a rank's process, without those of its children.

The samples are sums, because a series per worker would make new series in every epoch.
"""

import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from trackside_daemon.collectors.kernel_files import read
from trackside_daemon.collectors.process.process_tree import ProcessKey, Stat
from trackside_daemon.model.families import process as process_families
from trackside_daemon.model.metric import Sample

GENERATION_SECONDS = 60.0  # shortest time for which the last counts of a process are kept after it was last seen


class SeriesLabels(NamedTuple):
    """The labels of a rank's series."""

    run: str
    rank: str


class Accumulator:
    """A counter over processes that come and go, which keeps the counts of ended processes."""

    def __init__(self) -> None:
        self.totals: dict[tuple[str, ...], float] = {}
        # Two generations forget ended processes after one to two minutes, without a time for each process.
        self._older: dict[ProcessKey, float] = {}
        self._newer: dict[ProcessKey, float] = {}

    def add(self, key: tuple[str, ...], process: ProcessKey, count: float) -> None:
        """Add the increase of a process's *count* since the last call to the total of *key*."""
        before = self._newer[process] if process in self._newer else self._older.get(process, 0)
        self.totals[key] = self.totals.get(key, 0) + max(0, count - before)
        self._newer[process] = count

    def expire(self) -> None:
        """Forget processes that were not added since the last call."""
        self._older = self._newer
        self._newer = {}

    def keep(self, keys: Collection[tuple[str, ...]]) -> None:
        """Forget all totals except these."""
        self.totals = {key: total for key, total in self.totals.items() if key in keys}


class _Sum:
    """Sums over the workers of one rank in one tick; memory in pages."""

    def __init__(self) -> None:
        self.workers = 0
        self.blocked = 0
        self.resident = 0
        self.shared = 0


class ChildProcesses:
    """Sums over the processes below each rank.

    Args:
        proc: Path of procfs.
    """

    def __init__(self, proc: Path) -> None:
        self._proc = str(proc)
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._ticks_per_second = os.sysconf("SC_CLK_TCK")
        self._sums: dict[SeriesLabels, _Sum] = {}
        self._cpu = Accumulator()
        self._read = Accumulator()
        self._expire_at = 0.0

    def begin(self, now: float) -> None:
        """Begin a tick, at *now* in seconds of the monotonic clock."""
        self._sums = {}
        if now >= self._expire_at:
            self._expire_at = now + GENERATION_SECONDS
            self._cpu.expire()
            self._read.expire()

    def add_workers(self, labels: SeriesLabels, workers: Iterable[Stat]) -> None:
        """Add the workers of one process of a rank to the rank's sums."""
        total = self._sums.setdefault(labels, _Sum())
        for worker in workers:
            total.workers += 1
            total.blocked += worker.state == "D"
            self._cpu.add(labels, worker.key, worker.user + worker.system)
            try:
                _, resident, shared, _ = read(f"{self._proc}/{worker.pid}/statm").split(None, 3)
                total.resident += int(resident)
                total.shared += int(shared)
                self._read.add(labels, worker.key, _read_bytes(read(f"{self._proc}/{worker.pid}/io")))
            except (OSError, ValueError):  # it has ended, or this user may not read its files
                continue

    def other_samples(self, pid: int, others: Collection[Stat]) -> Iterator[Sample]:
        """Yield the sums over the processes below one process of a rank that are not workers."""
        label = (str(pid),)
        for process in others:
            self._cpu.add(label, process.key, process.user + process.system)
        yield Sample(process_families.CHILDREN, label, len(others))
        yield Sample(
            process_families.CHILDREN_RESIDENT, label, sum(process.resident for process in others) * self._page_bytes
        )
        yield Sample(process_families.CHILDREN_CPU, label, self._cpu.totals.get(label, 0) / self._ticks_per_second)

    def worker_samples(self) -> Iterator[Sample]:
        """Yield the sums over the workers of each rank."""
        for labels, total in self._sums.items():
            yield Sample(process_families.WORKERS, labels, total.workers)
            yield Sample(process_families.WORKERS_BLOCKED, labels, total.blocked)
            yield Sample(process_families.WORKERS_RESIDENT, labels, total.resident * self._page_bytes)
            yield Sample(
                process_families.WORKERS_ANONYMOUS, labels, max(0, total.resident - total.shared) * self._page_bytes
            )
            yield Sample(process_families.WORKERS_SHARED, labels, total.shared * self._page_bytes)
            yield Sample(process_families.WORKERS_CPU, labels, self._cpu.totals.get(labels, 0) / self._ticks_per_second)
            if labels in self._read.totals:
                yield Sample(process_families.WORKERS_READ, labels, self._read.totals[labels])

    def keep(self, ranks: Collection[SeriesLabels], pids: Collection[int]) -> None:
        """Forget all ranks and processes except these."""
        keys = {*ranks, *((str(pid),) for pid in pids)}
        self._cpu.keep(keys)
        self._read.keep(keys)


def _read_bytes(io: bytes) -> int:
    """Return read_bytes of /proc/PID/io, the fifth line."""
    begin = io.index(b"\nread_bytes:") + len(b"\nread_bytes:")
    return int(io[begin : io.index(b"\n", begin)])


LATER_SECONDS = 10.0  # interval of reading values that seldom change or are expensive

# Number of open files above which they are listed only every `LATER_SECONDS`, on kernels that need a list to count.
MANY = 1000

# Exported state by state of the kernel.
STATES = {"R": "R", "S": "S", "D": "D", "Z": "Z", "T": "T", "t": "T", "I": "S", "X": "Z"}


KINDS = {b"voluntary_ctxt_switches": "voluntary", b"nonvoluntary_ctxt_switches": "involuntary"}


class RankUsage:
    """The resource use of rank processes; values that this user may not read are left out.

    Args:
        proc: Path of procfs.
    """

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
        status = _numbers(f"{directory}/status", {*process_families.MEMORY, *KINDS})
        for field, amount in status.items():
            if field in process_families.MEMORY:
                yield Sample(process_families.MEMORY[field], (label,), amount * 1024)
            else:
                yield Sample(process_families.CONTEXT_SWITCHES, (label, KINDS[field]), amount)
        for field, amount in _numbers(f"{directory}/io", process_families.IO).items():
            yield Sample(process_families.IO[field], (label,), amount)
        schedule = _text(f"{directory}/schedstat").split()
        if len(schedule) > 1 and schedule[1].isdigit():
            yield Sample(process_families.CPU_WAIT, (label,), int(schedule[1]) / 1e9)
        yield from self._of_files(rank.key, directory, label, now)

    def keep(self, keys: Collection[ProcessKey]) -> None:
        """Forget all processes except these."""
        self._fds = {key: self._fds[key] for key in keys if key in self._fds}
        self._limits = {key: self._limits[key] for key in keys if key in self._limits}

    def _of_stat(self, rank: Stat, label: str) -> Iterator[Sample]:
        yield Sample(process_families.CPU, (label, "user"), rank.user / self._ticks_per_second)
        yield Sample(process_families.CPU, (label, "system"), rank.system / self._ticks_per_second)
        yield Sample(process_families.MAJOR_FAULTS, (label,), rank.major_faults)
        yield Sample(process_families.THREADS, (label,), rank.threads)
        if (started := self.started(rank)) is not None:
            yield Sample(process_families.START_TIME, (label,), started)
        current = STATES.get(rank.state)
        for state in dict.fromkeys(STATES.values()) if current else ():
            yield Sample(process_families.STATE, (label, state), float(state == current))

    def _of_files(self, key: ProcessKey, directory: str, label: str, now: float) -> Iterator[Sample]:
        count = self._count_files(key, f"{directory}/fd", now)
        if count is not None:
            yield Sample(process_families.OPEN_FDS, (label,), count)
        due, limit = self._limits.get(key, (now, None))
        if now >= due:
            limit = _limit(f"{directory}/limits")
            self._limits[key] = now + LATER_SECONDS, limit
        if limit is not None:
            yield Sample(process_families.MAX_FDS, (label,), limit)

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
