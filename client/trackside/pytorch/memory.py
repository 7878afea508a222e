"""Read GPU memory from PyTorch's allocator in this process, in the training's own thread."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from trackside.environment.identity import gpu_name
from trackside.training_log import warn
from trackside.wire import Memory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trackside.pytorch.cuda_timer import CudaDevices


class GpuMemory:
    """Memory of the GPUs, for one run: peaks and failures from before the run do not count.

    The user's statistics are not reset, and a reset by the user resets nothing here.

    Args:
        gpus: Access to CUDA.
    """

    def __init__(self, gpus: CudaDevices) -> None:
        self._gpus = gpus
        self._names: dict[int, str] = {}
        self._histories: dict[int, _MemoryHistory] = {}
        self._fails = False
        if gpus.used():
            self._histories = {index: _MemoryHistory(stats) for index, stats in self._stats()}

    def read(self) -> dict[str, Memory]:
        """Return the memory of each GPU that this process has allocated on, by its UUID, else by its index."""
        return {
            self._name(index): self._histories.setdefault(index, _MemoryHistory({})).update(stats)
            for index, stats in self._stats()
        }

    def _stats(self) -> list[tuple[int, Mapping[str, Any]]]:
        if self._fails:
            return []
        try:
            every = [(index, self._gpus.memory(index)) for index in range(self._gpus.count())]
        except Exception as error:  # noqa: BLE001  an allocator of the user's own may have no figures
            self._fails = True
            warn(f"GPU memory cannot be read: {type(error).__name__}: {str(error)[:200]}")
            return []
        return [
            (index, stats)
            for index, stats in every
            if index in self._histories or _amount(stats, "reserved_bytes", "peak")
        ]

    def _name(self, index: int) -> str:
        if index not in self._names:
            self._names[index] = self._gpus.uuid(index) or gpu_name(os.environ, index)
        return self._names[index]


class _MemoryHistory:
    """Peak and failures of one GPU since the first reading."""

    def __init__(self, before: Mapping[str, Any]) -> None:
        self._peak_before: int | None = _amount(before, "allocated_bytes", "peak")
        self._last_failures = int(before.get("num_ooms", 0))
        self._peak = 0
        self._failures = 0

    def update(self, stats: Mapping[str, Any]) -> Memory:
        """Add a reading, and return the memory to send."""
        allocated, peak = _amount(stats, "allocated_bytes", "current"), _amount(stats, "allocated_bytes", "peak")
        if peak != self._peak_before:  # the peak is the run's own, since it has risen or was reset
            self._peak_before = None
            self._peak = max(self._peak, peak)
        self._peak = max(self._peak, allocated)
        failures = int(stats.get("num_ooms", 0))
        # Fewer than before: the user has reset the statistics.
        self._failures += failures - self._last_failures if failures >= self._last_failures else failures
        self._last_failures = failures
        return Memory(allocated, _amount(stats, "reserved_bytes", "current"), self._peak, self._failures)


def _amount(stats: Mapping[str, Any], kind: str, of: str) -> int:
    return int(stats.get(kind, {}).get("all", {}).get(of, 0))
