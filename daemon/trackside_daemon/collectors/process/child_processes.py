"""Sum the resource use of the processes below each rank: its data loader workers, and the others.

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

    metrics = (
        *(process_families.WORKERS, process_families.WORKERS_BLOCKED, process_families.WORKERS_RESIDENT),
        *(process_families.WORKERS_ANONYMOUS, process_families.WORKERS_SHARED, process_families.WORKERS_CPU),
        *(process_families.WORKERS_READ, process_families.CHILDREN, process_families.CHILDREN_RESIDENT),
        process_families.CHILDREN_CPU,
    )

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
