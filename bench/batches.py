"""Measure what it costs per step to keep the samples of the last batches: in the training's thread, and in the sender's.

Run by hand: ``PYTHONPATH=tests:. .venv/bin/python bench/batches.py``.
"""

from __future__ import annotations

import gc
import tracemalloc
from time import thread_time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from bench.daemons import fresh_daemon
from bench.pairs import Pairs
from bench.table import head, interval, machine, row
from trackside.default_run import init
from trackside.drawn_batches import BatchFollower, packed
from trackside.totals.phases import TimedLoader, _TimedIterator
from trackside.totals.recent_batches import RecentBatches

if TYPE_CHECKING:
    from collections.abc import Iterator

PAIRS, WARM_UP = 1000, 200
SIZES = (8, 32, 256)


class Samples(Dataset[int]):  # type: ignore[misc]
    """A data set that costs nothing."""

    def __len__(self) -> int:
        return 10**9

    def __getitem__(self, index: int) -> int:
        return index


class Order:
    """Batches without an end, in an order that costs nothing."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[list[int]]:
        first = 10**8
        while True:
            yield list(range(first, first + self.size))
            first += self.size


class Nothing(BatchFollower):
    """A follower that follows nothing."""

    def arrived(self, yielded: Any) -> tuple[()]:
        """Return nothing."""
        del yielded
        return ()


def iterators(run: Any, size: int) -> tuple[Any, Any]:
    """Return a timed iterator of a loader that notes its batches, and one that does not."""

    def loader() -> DataLoader[int]:
        return DataLoader(Samples(), batch_sampler=Order(size), collate_fn=len)

    timed = iter(TimedLoader(run.queue.mark, loader()))
    batches: Any = iter(loader())
    base = type(batches).__mro__[1]
    plain = vars(base)["_next_index"].__wrapped__
    batches.__class__ = type("Plain", (type(batches),), {"_next_index": plain})
    return timed, _TimedIterator(run.queue.mark, batches, None, None, Nothing(batches))


def main() -> None:
    """Print the tables."""
    machine()
    head("samples of a batch", "longer by, CPU of the training's thread", "null pairs", "sender's thread", "64 steps")
    with fresh_daemon() as daemon:
        run = init("batches", endpoint=daemon.endpoint)
        for size in SIZES:
            _measure(run, size)
        run.finish()


def _measure(run: Any, size: int) -> None:
    timed, plain = iterators(run, size)
    work, plan, spent = torch.ones(64, 64), Pairs(PAIRS, WARM_UP), []
    gc.disable()
    for step, tested in enumerate(plan.arms):
        begun = thread_time()
        next(timed if tested else plain)
        run.push(step=step, loss=0.5)
        spent.append(thread_time() - begun)
        work @ work
    gc.enable()
    one, other = plan.split(spent)
    longer, null = (
        [float(np.median(some)) * 1e6] * 3 for some in ((one - other)[plan.tested], (one - other)[~plan.tested])
    )
    batch = timed._follower.arrived(None)
    seconds, kept = _sender(batch)
    row(
        str(size),
        interval(longer, "+.2f", " µs"),
        interval(null, "+.2f", " µs"),
        f"{seconds * 1e6:.2f} µs",
        f"{kept >> 10} KiB",
    )


def _sender(batch: Any, steps: int = 2000) -> tuple[float, int]:
    """Return the CPU seconds of a step in the sender's thread, and the bytes of 64 steps."""
    best = float("inf")
    for _ in range(5):
        recent, begun = RecentBatches(), thread_time()
        for step in range(steps):
            recent.arrived(step, batch)
            recent.step_began(step, step)
            recent._waiting.clear()
        best = min(best, (thread_time() - begun) / steps)
    tracemalloc.start()
    kept = [packed(batch[0][2]) for _ in range(64)]
    size = tracemalloc.get_traced_memory()[0] + 64 * 200
    tracemalloc.stop()
    del kept
    return best, size


if __name__ == "__main__":
    main()
