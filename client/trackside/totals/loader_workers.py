"""Measure the workers of PyTorch's data loaders: how long they make a batch, and how many batches are ready.

Each worker counts its batches, and their wall and CPU time, in memory that it shares with the training process, which reads it
once a second. Batches, their order and random numbers stay as they are. A loader without workers is left alone.
"""

import mmap
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from time import monotonic_ns, process_time_ns
from typing import Any

from trackside.interpreter import write_stacks_on_signal

WORKERS = "data/workers"
READY = "data/batches_ready"
TRANSFORM = "data/transform_seconds"
TRANSFORM_CPU = "data/transform_cpu_seconds"

EVERY = 10**9  # nanoseconds between two readings
SLOTS = 1024  # workers that one process can have measured at a time; older ones share their places with newer ones
_FIELDS = 3  # of a worker: its batches, and the wall and CPU nanoseconds that these took
_BYTES = 8 * _FIELDS * SLOTS

_ATTRIBUTE = "trackside_workers"  # of an iterator: its `WorkerTimes`


class _SharedCounts:
    """Memory of this process that its workers can open, however they are started.

    Raises:
        OSError: There is none, or no file descriptor is left.
        AttributeError: The system is not Linux.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.file = os.memfd_create("trackside-workers")
        os.ftruncate(self.file, _BYTES)
        self.counts = memoryview(mmap.mmap(self.file, _BYTES)).cast("q")
        self._next = 0

    def reserve(self, workers: int) -> int:
        """Return the first place of so many workers in a row, whose counts are 0."""
        first = self._next if self._next + workers <= SLOTS else 0
        self._next = first + workers
        for place in range(first * _FIELDS, self._next * _FIELDS):
            self.counts[place] = 0
        return first


_shared: _SharedCounts | None = None


class TimedWorker:
    """The ``worker_init_fn`` of a timed loader: it times the worker's batches from then on, and calls the loader's own.

    Args:
        original: The ``worker_init_fn`` of the loader.
        pid: The training process.
        file: Its descriptor of the shared memory.
        first: The place of worker 0.
    """

    def __init__(self, original: Callable[[int], object] | None, pid: int, file: int, first: int) -> None:
        self.original, self.pid, self.file, self.first = original, pid, file, first

    def __call__(self, worker: int) -> None:
        """Begin to time this worker, by its number in the loader."""
        write_stacks_on_signal()  # else only one that was forked by the training does
        with suppress(Exception):  # training must go on
            self._time(worker)
        if self.original is not None:
            self.original(worker)

    def _time(self, worker: int) -> None:
        with open(f"/proc/{self.pid}/fd/{self.file}", "r+b") as file:  # noqa: PTH123  os.open and a Path are no shorter
            counts = memoryview(mmap.mmap(file.fileno(), _BYTES)).cast("q")
        kinds = sys.modules["torch.utils.data._utils.fetch"]  # of this process alone: the training's stay as they are
        for kind in (kinds._MapDatasetFetcher, kinds._IterableDatasetFetcher):  # noqa: SLF001  there is no public name
            kind.fetch = _timed(kind.fetch, counts, (self.first + worker) * _FIELDS)


def _timed(fetch: Callable[..., Any], counts: memoryview, place: int) -> Callable[..., Any]:
    @wraps(fetch)
    def timed(self: Any, indexes: Any) -> Any:
        wall, cpu = monotonic_ns(), process_time_ns()
        batch = fetch(self, indexes)
        counts[place + 2] += process_time_ns() - cpu
        counts[place + 1] += monotonic_ns() - wall
        counts[place] += 1
        return batch

    return timed


class WorkerTimes:
    """The workers of one iterator over a loader.

    Args:
        workers: Their number.
        counts: The shared memory.
        first: The place of worker 0.

    Attributes:
        due: When they are read next, in monotonic nanoseconds.
    """

    def __init__(self, workers: int, counts: memoryview, first: int) -> None:
        self.due = monotonic_ns() + EVERY
        self._workers = workers
        self._counts = counts[first * _FIELDS : (first + workers) * _FIELDS]
        self._before = [0] * _FIELDS

    def read(self, iterator: Any) -> dict[str, float]:
        """Return the values since the last reading, by key: wall and CPU seconds of a batch, and batches that are ready now."""
        self.due = monotonic_ns() + EVERY
        now = [sum(self._counts[field::_FIELDS]) for field in range(_FIELDS)]
        batches, wall, cpu = (after - before for after, before in zip(now, self._before, strict=True))
        self._before = now
        arrived = sum(len(task) > 1 for task in iterator._task_info.values())  # noqa: SLF001  there is no public name
        values = {
            WORKERS: float(self._workers),
            READY: float(arrived + iterator._data_queue.qsize()),  # noqa: SLF001  the same
        }
        if batches > 0:
            values[TRANSFORM] = wall / batches / 1e9
            values[TRANSFORM_CPU] = cpu / batches / 1e9
        return values


@contextmanager
def timed_workers(loader: Any) -> Iterator[WorkerTimes | None]:
    """Time the workers that a loader starts within; None if it starts none, or they cannot be timed or are so already."""
    times, original = None, None
    with suppress(Exception):  # of a loader of the user's own, and training must go on
        data = sys.modules.get("torch.utils.data")
        if data is not None and isinstance(loader, data.DataLoader) and loader.num_workers > 0:
            original = loader.worker_init_fn
            persist = getattr(loader, "_iterator", None) is not None
            if not persist and not isinstance(original, TimedWorker):
                times = _start(loader, original)
    try:
        yield times
    finally:
        if times is not None:
            loader.worker_init_fn = original


def _start(loader: Any, original: Callable[[int], object] | None) -> WorkerTimes | None:
    global _shared  # noqa: PLW0603
    if _shared is None or _shared.pid != os.getpid():  # a forked child has workers of its own
        _shared = _SharedCounts()
    if loader.num_workers > SLOTS:
        return None
    first = _shared.reserve(loader.num_workers)
    loader.worker_init_fn = TimedWorker(original, _shared.pid, _shared.file, first)
    return WorkerTimes(loader.num_workers, _shared.counts, first)


def remember(iterator: Any, times: WorkerTimes | None) -> None:
    """Keep the times with their iterator, if its loader started workers for it."""
    if times is not None and hasattr(iterator, "_task_info"):
        setattr(iterator, _ATTRIBUTE, times)


def times_of(iterator: Any) -> WorkerTimes | None:
    """Return the times of an iterator's workers; None if they are not timed."""
    return getattr(iterator, _ATTRIBUTE, None)
