"""What the processes below a rank take together: its data loader's workers, and the others.

Each worker for itself would be new series in every epoch.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.collectors.kernel_files import read
from trackside_daemon.model.metric import Metric, Sample

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from pathlib import Path

    from trackside_daemon.collectors.process.process_names import Life
    from trackside_daemon.collectors.process.process_tree import Stat

TURN_SECONDS = 60.0
"""What a process had is remembered for at least so long after it was seen last."""

_WHOSE = ("run", "rank")
_SHARED = "what a fork shares with its rank is counted for each worker"
_STATM = "from /proc/PID/statm"

WORKERS = Metric(
    "trackside_dataloader_workers",
    "gauge",
    "Data loader workers below the rank: pt_data_worker by name in /proc/PID/stat, as PyTorch 2.5 and later call them.",
    _WHOSE,
)
RESIDENT = Metric(
    "trackside_dataloader_resident_memory_bytes",
    "gauge",
    f"Memory of all workers in RAM; {_SHARED}; {_STATM} resident.",
    _WHOSE,
    "bytes",
)
ANONYMOUS = Metric(
    "trackside_dataloader_anonymous_memory_bytes",
    "gauge",
    f"Memory of all workers in RAM that no file backs; {_SHARED}; {_STATM} resident less shared.",
    _WHOSE,
    "bytes",
)
SHARED = Metric(
    "trackside_dataloader_shared_memory_bytes",
    "gauge",
    f"Mapped files and shared memory of all workers in RAM, counted for each worker; {_STATM} shared.",
    _WHOSE,
    "bytes",
)
CPU = Metric(
    "trackside_dataloader_cpu_seconds_total",
    "counter",
    "CPU time of all workers, those that are gone too, from /proc/PID/stat; what one used after the last tick that saw it is "
    "missed, which is much where epochs take a few ticks.",
    _WHOSE,
    "seconds",
)
READ = Metric(
    "trackside_dataloader_read_bytes_total",
    "counter",
    "Read from disk by all workers, those that are gone too, from /proc/PID/io read_bytes.",
    _WHOSE,
    "bytes",
)
BLOCKED = Metric(
    "trackside_dataloader_blocked_workers",
    "gauge",
    "Workers that wait for a device or a file system, from /proc/PID/stat: state D.",
    _WHOSE,
)
CHILDREN = Metric(
    "trackside_process_children",
    "gauge",
    "Processes below the rank's, of all depths, that are neither ranks nor data loader workers, from "
    "/proc/PID/task/TID/children.",
    ("pid",),
)
CHILDREN_RESIDENT = Metric(
    "trackside_process_children_resident_memory_bytes",
    "gauge",
    "Memory in RAM of the processes below the rank's that are neither ranks nor workers, from /proc/PID/stat rss.",
    ("pid",),
    "bytes",
)
CHILDREN_CPU = Metric(
    "trackside_process_children_cpu_seconds_total",
    "counter",
    "CPU time of the processes below the rank's that are neither ranks nor workers, those that are gone too, from "
    "/proc/PID/stat.",
    ("pid",),
    "seconds",
)


class Whose(NamedTuple):
    """A rank of a run, as its series are labelled."""

    run: str
    rank: str


class Grown:
    """A count over processes that come and go: what one of them had stays when it is gone."""

    def __init__(self) -> None:
        self.totals: dict[tuple[str, ...], float] = {}
        self._older: dict[Life, float] = {}
        self._newer: dict[Life, float] = {}

    def add(self, key: tuple[str, ...], life: Life, count: float) -> None:
        """A process has that much by now; what is new of it is added to the total of *key*."""
        before = self._newer[life] if life in self._newer else self._older.get(life, 0)
        self.totals[key] = self.totals.get(key, 0) + max(0, count - before)
        self._newer[life] = count

    def turn(self) -> None:
        """Forget the processes that were not seen since the last turn."""
        self._older, self._newer = self._newer, {}

    def keep(self, keys: Collection[tuple[str, ...]]) -> None:
        """Forget all totals but these."""
        self.totals = {key: total for key, total in self.totals.items() if key in keys}


class _Sum:
    """The workers of one rank in one tick; memory in pages."""

    def __init__(self) -> None:
        self.workers = self.blocked = self.resident = self.shared = 0


class Below:
    """Sums over the processes below each rank.

    Args:
        proc: Where the kernel's process files are.
    """

    metrics = (
        *(WORKERS, BLOCKED, RESIDENT, ANONYMOUS, SHARED, CPU, READ),
        *(CHILDREN, CHILDREN_RESIDENT, CHILDREN_CPU),
    )

    def __init__(self, proc: Path) -> None:
        self._proc = str(proc)
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._tick = os.sysconf("SC_CLK_TCK")
        self._sums: dict[Whose, _Sum] = {}
        self._cpu = Grown()
        self._read = Grown()
        self._turn = 0.0

    def begin(self, now: float) -> None:
        """A tick begins, at *now* in seconds of the monotonic clock."""
        self._sums = {}
        if now >= self._turn:
            self._turn = now + TURN_SECONDS
            self._cpu.turn()
            self._read.turn()

    def workers(self, whose: Whose, workers: Iterable[Stat]) -> None:
        """Those of one process of a rank."""
        total = self._sums.setdefault(whose, _Sum())
        for worker in workers:
            total.workers += 1
            total.blocked += worker.state == "D"
            self._cpu.add(whose, worker.life, worker.user + worker.system)
            try:
                _, resident, shared, _ = read(f"{self._proc}/{worker.pid}/statm").split(None, 3)
                total.resident += int(resident)
                total.shared += int(shared)
                self._read.add(whose, worker.life, _read_bytes(read(f"{self._proc}/{worker.pid}/io")))
            except (OSError, ValueError):  # it is gone by now, or does not tell this user
                continue

    def others(self, pid: int, others: Collection[Stat]) -> Iterator[Sample]:
        """Those of one process of a rank that are no workers."""
        label = (str(pid),)
        for one in others:
            self._cpu.add(label, one.life, one.user + one.system)
        yield Sample(CHILDREN, label, len(others))
        yield Sample(CHILDREN_RESIDENT, label, sum(one.resident for one in others) * self._page)
        yield Sample(CHILDREN_CPU, label, self._cpu.totals.get(label, 0) / self._tick)

    def samples(self) -> Iterator[Sample]:
        """The sums of all workers."""
        for whose, total in self._sums.items():
            yield Sample(WORKERS, whose, total.workers)
            yield Sample(BLOCKED, whose, total.blocked)
            yield Sample(RESIDENT, whose, total.resident * self._page)
            yield Sample(ANONYMOUS, whose, max(0, total.resident - total.shared) * self._page)
            yield Sample(SHARED, whose, total.shared * self._page)
            yield Sample(CPU, whose, self._cpu.totals.get(whose, 0) / self._tick)
            if whose in self._read.totals:
                yield Sample(READ, whose, self._read.totals[whose])

    def keep(self, ranks: Collection[Whose], pids: Collection[int]) -> None:
        """Forget all but these ranks and these processes."""
        keys = {*ranks, *((str(pid),) for pid in pids)}
        self._cpu.keep(keys)
        self._read.keep(keys)


def _read_bytes(io: bytes) -> int:
    """/proc/PID/io's fifth line."""
    begin = io.index(b"\nread_bytes:") + len(b"\nread_bytes:")
    return int(io[begin : io.index(b"\n", begin)])
