"""Collect the resource use of each rank's process, of its data loader workers and of its other children."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from trackside_daemon.collectors.base import HIDDEN, NothingToCollect
from trackside_daemon.collectors.kernel_files import read
from trackside_daemon.collectors.process.process_tree import (
    ProcessKey,
    ProcessRoles,
    ProcessTree,
    Role,
    Stat,
    read_stat,
)
from trackside_daemon.collectors.process.rank_usage import ChildProcesses, RankUsage, SeriesLabels
from trackside_daemon.collectors.process.shm import ShmHistory
from trackside_daemon.collectors.process.worker_deaths import WorkerDeaths
from trackside_daemon.linux.oom import OomKills
from trackside_daemon.model.families import process as process_families
from trackside_daemon.model.metric import Sample
from trackside_daemon.model.rank_process import RankProcess
from trackside_daemon.model.records import Record

# The kernel stops the page faults of a process while something reads this file.
SECONDS = 60.0  # interval of reading


class Smaps:
    """The unshared memory of processes, read one after another in a separate thread.

    Args:
        proc: Path of procfs.
    """

    def __init__(self, proc: Path) -> None:
        self._proc = str(proc)
        self._due = 0.0
        self._thread: threading.Thread | None = None
        self._sizes: dict[ProcessKey, tuple[int, int]] = {}

    def samples(self, keys: Collection[ProcessKey], now: float) -> Iterator[Sample]:
        """Yield the last values of living processes; *now* is in seconds of the monotonic clock."""
        sizes = self._sizes
        if keys and now >= self._due and not (self._thread and self._thread.is_alive()):
            self._due = now + SECONDS
            # In a thread, because the kernel walks all page tables of a process for one read.
            self._thread = threading.Thread(target=self._read, args=(tuple(keys),), name="smaps", daemon=True)
            self._thread.start()
        for key in keys:
            if key in sizes:
                unique, proportional = sizes[key]
                yield Sample(process_families.UNIQUE_MEMORY, (str(key.pid),), unique)
                yield Sample(process_families.PROPORTIONAL_MEMORY, (str(key.pid),), proportional)

    def wait(self) -> None:
        """Wait until the thread has finished."""
        if self._thread is not None:
            self._thread.join()

    def _read(self, keys: Collection[ProcessKey]) -> None:
        by_key = {}
        for key in keys:
            try:
                sizes = _parse(read(f"{self._proc}/{key.pid}/smaps_rollup"))
            except (OSError, ValueError, IndexError):  # it is gone, may not be read by this user, or has no memory left
                continue
            # After the read, because the pid may have passed to another process before it.
            process = read_stat(self._proc, key.pid)
            if process is not None and process.key == key:
                by_key[key] = sizes
        self._sizes = by_key  # replaced as a whole, because `samples` runs in another thread without a lock


def _parse(text: bytes) -> tuple[int, int]:
    """Return unique and proportional bytes."""
    lines = (line.split() for line in text.splitlines()[1:])  # the first line is an address range
    amounts = {fields[0]: int(fields[1]) * 1024 for fields in lines}
    unique = sum(amount for name, amount in amounts.items() if name.startswith(b"Private_"))
    return unique, amounts.get(b"Pss:", 0)


class TrainingProcess(NamedTuple):
    """One process of a training, in the form of ``/api/v1/processes``."""

    pid: int  # the process id
    parent: int  # the pid of its parent
    role: Role  # its role in the training
    comm: str  # name of its main thread
    state: str  # state of its main thread, a letter as in /proc/PID/stat
    run: str  # the run's name
    run_id: str  # the run's id, unique over all machines
    rank: int  # the rank that it is, or that started it
    resident_bytes: int  # memory in RAM
    cpu_seconds: float  # CPU time of all its threads, without its children
    threads: int  # number of threads
    started: float | None  # start time in Unix seconds; None when the boot time is unknown


class ProcessCollector:
    """The processes of the training on this machine.

    Args:
        rank_processes: Returns the processes of this machine that train.
        proc: Path of procfs.
        sys: Path of the host's sysfs.
        smaps: Also read smaps_rollup, which takes a lock on the process's memory.
        clock: Seconds of the monotonic clock.
        wall: Unix time, in seconds.

    Attributes:
        processes: The processes in the last tick: each rank followed by the processes below it.
    """

    name = "process"

    def __init__(
        self,
        rank_processes: Callable[[], Sequence[RankProcess]],
        proc: Path = Path("/proc"),
        sys: Path = Path("/sys"),
        *,
        smaps: bool = False,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.processes: tuple[TrainingProcess, ...] = ()
        self._rank_processes = rank_processes
        self._clock = clock
        self._wall = wall
        self._tree = ProcessTree(proc)
        self._usage = RankUsage(proc)
        self._children = ChildProcesses(proc)
        self._roles = ProcessRoles()
        self._shm = ShmHistory()
        self._deaths = WorkerDeaths(proc, OomKills(proc, sys))
        self._smaps = Smaps(proc) if smaps else None
        self._ticks_per_second = os.sysconf("SC_CLK_TCK")
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._started: dict[tuple[str, int, int], int] = {}

    def collect(self) -> list[Sample]:
        """Return the samples of each rank and of the processes below it; none when nothing trains.

        Raises:
            NothingToCollect: Processes train here, but the pid of none is visible.
        """
        now = self._clock()
        every = self._rank_processes()
        visible = [process for process in every if process.pid]
        self._shm.update(visible, now)
        self._children.begin(now)
        trees = list(self._trees(visible, now))
        samples = [sample for tree in trees for sample in self._samples(tree, now)]
        samples += self._children.worker_samples()
        self._deaths.update(now, self._wall(), self._shm.fullest())
        ranks = {_labels(process) for process in visible}
        samples += self._deaths.samples(ranks, now)
        keys = [tree.rank.key for tree in trees]
        if self._smaps is not None:
            samples += self._smaps.samples(keys, now)
        self._usage.keep(keys)
        self._children.keep(ranks, {process.pid for process in visible})
        self._remember(trees, visible)
        # Not earlier: the state of ended processes is dropped also while all pids are hidden.
        if every and not visible:
            raise NothingToCollect(HIDDEN)
        return samples

    def reports(self) -> Sequence[Record]:
        """Return the events since the last call, for the history."""
        return self._deaths.reports()

    def close(self) -> None:
        """Stop following processes; do not call `collect` after this."""
        self._deaths.close()

    def _trees(self, rank_processes: Iterable[RankProcess], now: float) -> Iterator[_Tree]:
        """Yield the tree of each rank; a process with several runs belongs to the oldest."""
        by_pid: dict[int, list[RankProcess]] = {}
        for rank_process in rank_processes:
            by_pid.setdefault(rank_process.pid, []).append(rank_process)
        self._roles.begin()
        for pid, (rank, *below) in self._tree.walk(by_pid, now).items():
            if current := [rank_process for rank_process in by_pid[pid] if self._is_same(rank_process, rank)]:
                yield _Tree(current[0], rank, below, self._roles.of(below))

    def _is_same(self, rank_process: RankProcess, stat: Stat) -> bool:
        """Return whether the pid still belongs to the process that first had it as this rank."""
        key = (rank_process.run_id, rank_process.attempt, rank_process.pid)
        return self._started.setdefault(key, stat.start) == stat.start

    def _samples(self, tree: _Tree, now: float) -> Iterator[Sample]:
        workers = tree.with_role("dataloader")
        others = tree.with_role("other")
        self._deaths.unfollow(process.key for process in others)
        self._deaths.follow(workers, tree.rank, tree.rank_process, now)
        self._children.add_workers(_labels(tree.rank_process), workers)
        yield from self._usage.samples(tree.rank, now)
        yield from self._children.other_samples(tree.rank.pid, others)

    def _remember(self, trees: Sequence[_Tree], rank_processes: Iterable[RankProcess]) -> None:
        current = {(process.run_id, process.attempt, process.pid) for process in rank_processes}
        self._started = {key: start for key, start in self._started.items() if key in current}
        self.processes = tuple(
            self._process(stat, role or "other", tree.rank_process)
            for tree in trees
            for stat, role in zip((tree.rank, *tree.below), ("rank", *tree.roles), strict=True)
        )

    def _process(self, stat: Stat, role: Role, rank_process: RankProcess) -> TrainingProcess:
        return TrainingProcess(
            pid=stat.pid,
            parent=stat.parent,
            role=role,
            comm=stat.comm,
            state=stat.state,
            run=rank_process.run,
            run_id=rank_process.run_id,
            rank=rank_process.rank,
            resident_bytes=stat.resident * self._page_bytes,
            cpu_seconds=(stat.user + stat.system) / self._ticks_per_second,
            threads=stat.threads,
            started=self._usage.started(stat),
        )


class _Tree(NamedTuple):
    """A rank, the processes *below* it, and the role of each of these; None while the role is undecided."""

    rank_process: RankProcess
    rank: Stat
    below: list[Stat]
    roles: list[Role | None]

    def with_role(self, role: Role) -> list[Stat]:
        return [process for process, its_role in zip(self.below, self.roles, strict=True) if its_role == role]


def _labels(process: RankProcess) -> SeriesLabels:
    return SeriesLabels(process.run, str(process.rank))
