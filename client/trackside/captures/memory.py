"""Snapshots of the memory of this process: PyTorch's allocator of GPU memory, and tracemalloc where it is on."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from trackside.wire import AllocationSite, Allocator, MemorySnapshot

MAX_SITES = 50  # largest ones that are sent of each allocator
FRAMES = 16
CHARACTERS = 200
TRACES_BYTES = 64 << 20  # memory of traces above which tracemalloc would hold the GIL for seconds

Stack = tuple[str, ...]


def memory() -> MemorySnapshot:
    """Return the largest allocations by stack.

    The first call has PyTorch record the stacks of GPU memory from then on, which costs it some microseconds per allocation.
    """
    found = MemorySnapshot([])
    for read in (_gpus, _traced):
        try:
            found.allocators.extend(read())
        except Exception as error:  # noqa: BLE001  an allocator of the user's own may have no snapshot
            found.errors.append(f"{type(error).__name__}: {error}"[:CHARACTERS])
    return found


def _gpus() -> Iterator[Allocator]:
    cuda: Any = sys.modules.get("torch.cuda")
    if cuda is None or not cuda.is_initialized():
        return
    by_device: dict[int, list[Mapping[str, Any]]] = {}
    for segment in cuda.memory_snapshot():
        by_device.setdefault(segment["device"], []).append(segment)
    recorded = False
    for device, segments in sorted(by_device.items()):
        blocks = [block for one in segments for block in one["blocks"] if block["state"] == "active_allocated"]
        recorded = recorded or any(block.get("frames") for block in blocks)
        yield Allocator(
            f"cuda:{device}",
            sum(one["allocated_size"] for one in segments),
            sum(one["total_size"] for one in segments),
            _largest((_stack(block.get("frames", ())), block["size"], 1) for block in blocks),
        )
    if by_device and not recorded:
        cuda.memory._record_memory_history("state", context="state", stacks="python")  # noqa: SLF001


def _stack(frames: Iterable[Mapping[str, Any]]) -> Stack:
    lines = (f"{frame['filename']}:{frame['line']} {frame['name']}"[:CHARACTERS] for frame in frames)
    return tuple(lines)[:FRAMES]


def _traced() -> Iterator[Allocator]:
    tracemalloc = sys.modules.get("tracemalloc")
    if tracemalloc is None or not tracemalloc.is_tracing():
        return
    if tracemalloc.get_tracemalloc_memory() > TRACES_BYTES:
        raise ValueError(
            f"tracemalloc has more than {TRACES_BYTES >> 20} MiB of traces, and reading them takes seconds"
        )
    allocated, _ = tracemalloc.get_traced_memory()
    statistics = tracemalloc.take_snapshot().statistics("traceback")
    sites = (
        (
            tuple(f"{frame.filename}:{frame.lineno}"[:CHARACTERS] for frame in reversed(one.traceback))[:FRAMES],
            one.size,
            one.count,
        )
        for one in statistics
    )
    yield Allocator("tracemalloc", allocated, allocated, _largest(sites))


def _largest(blocks: Iterable[tuple[Stack, int, int]]) -> list[AllocationSite]:
    """Return the stacks with the most bytes."""
    sums: dict[Stack, tuple[int, int]] = {}
    for stack, size, number in blocks:
        known, count = sums.get(stack, (0, 0))
        sums[stack] = known + size, count + number
    largest = sorted(sums.items(), key=lambda item: -item[1][0])[:MAX_SITES]
    return [AllocationSite(list(stack), size, count) for stack, (size, count) in largest]
