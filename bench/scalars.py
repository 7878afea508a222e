"""Measure the host time for reading scalars of each step from a GPU: as the client does it, and in other ways.

All ways run in the same loop of real kernels, whose own time is the first line. Needs a GPU.

"""

from __future__ import annotations

import statistics
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import torch

from trackside.device_scalars import SLOTS, DeviceScalars

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Way = Callable[[list[torch.Tensor]], None]

STEPS = 1000
WARM_UP = 100
SCALARS = (1, 2, 4, 8)
KERNELS = 20
SIZE = 2048


def main() -> None:
    """Print the table."""
    if not torch.cuda.is_available():
        sys.exit("bench/scalars.py measures a GPU, and PyTorch can use none here")
    print(f"\n{torch.cuda.get_device_name()}, PyTorch {torch.__version__}\n")
    print("| way | scalars | host, us a step (p50) | p99 | whole step, us |\n|---|---:|---:|---:|---:|")
    for cells in measured():
        print(f"| {' | '.join(cells)} |")


def measured(counts: tuple[int, ...] = SCALARS, steps: int = STEPS) -> Iterator[list[str]]:
    """Yield the cells of each row of the table."""
    for count in counts:
        for name, make in WAYS.items():
            took, step = _measure(make(count), count, steps)
            tail = took[len(took) * 99 // 100]
            yield [name, str(count), f"{statistics.median(took):.1f}", f"{tail:.1f}", f"{step:.0f}"]


def _measure(way: Way, count: int, steps: int) -> tuple[list[float], float]:
    """Return the sorted microseconds spent in *way*, and those of a whole step."""
    weights = torch.randn(SIZE, SIZE, device="cuda") / SIZE**0.5
    took: list[float] = []
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for step in range(WARM_UP + steps):
        if step == WARM_UP:
            torch.cuda.synchronize()
            begun = time.perf_counter()
        work = weights
        for _ in range(KERNELS):
            work = work @ weights
        scalars = list(work[0, :count].unbind())
        before = time.perf_counter()
        way(scalars)
        took.append((time.perf_counter() - before) * 1e6)
    torch.cuda.synchronize()
    return sorted(took[WARM_UP:]), (time.perf_counter() - begun) * 1e6 / steps


def _nothing(_: int) -> Way:
    return lambda _: None


def _client(count: int) -> Way:
    device = DeviceScalars(lambda *_: None, lambda _: None)
    keys = [f"key/{number}" for number in range(count)]

    def push(scalars: list[torch.Tensor]) -> None:
        device.poll()
        device.defer(0, None, dict(zip(keys, scalars, strict=True)))

    return push


class _Stacked:
    """One stack, one copy, one event; on the current stream or on another.

    Args:
        count: Scalars per step.
        side: The stream to copy on.

    """

    def __init__(self, count: int, side: torch.cuda.Stream | None = None) -> None:
        self._side = side
        self._slots = list(torch.empty(SLOTS, count, pin_memory=True).unbind())
        self._events = [torch.cuda.Event() for _ in range(SLOTS)]
        self._under_way: deque[tuple[Any, ...]] = deque()
        self._number = 0

    def __call__(self, scalars: list[torch.Tensor]) -> None:
        while self._under_way and self._under_way[0][0].query():
            self._under_way.popleft()[1].tolist()
        slot, event = self._slots[self._number % SLOTS], self._events[self._number % SLOTS]
        self._number += 1
        stacked = torch.stack(scalars)
        if self._side is None:
            slot.copy_(stacked, non_blocking=True)
            event.record()
        else:
            self._side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._side):
                slot.copy_(stacked, non_blocking=True)
            event.record(self._side)
        self._under_way.append((event, slot, stacked))  # which must live until a copy beside is made


def _read(_: int) -> Way:
    def read(scalars: list[torch.Tensor]) -> None:
        for scalar in scalars:
            scalar.item()

    return read


WAYS: dict[str, Callable[[int], Way]] = {
    "nothing": _nothing,
    "trackside": _client,
    "stacked": _Stacked,
    "stacked, side stream": lambda count: _Stacked(count, torch.cuda.Stream()),
    "`.item()`": _read,
}

if __name__ == "__main__":
    main()
