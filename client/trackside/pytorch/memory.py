"""How full GPUs are, as PyTorch's allocator in this process knows it. It is asked by the training's own thread."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from trackside.environment.visible_gpus import named
from trackside.log import warn
from trackside.wire import Memory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trackside.pytorch.cuda_timer import CudaDevices


class GpuMemory:
    """Looks for one run: what was before it began is no part of its maximum nor of its count.

    Nothing of the user's is reset, and what he resets resets nothing here.

    Args:
        gpus: Where the memory is.
    """

    def __init__(self, gpus: CudaDevices) -> None:
        self._gpus = gpus
        self._names: dict[int, str] = {}
        self._seen: dict[int, _MemoryHistory] = {}
        self._fails = False
        if gpus.used():
            self._seen = {index: _MemoryHistory(stats) for index, stats in self._all()}

    def look(self) -> dict[str, Memory]:
        """By the UUID of each GPU that this process has allocated on, else by its index."""
        return {
            self._name(index): self._seen.setdefault(index, _MemoryHistory({})).follow(stats)
            for index, stats in self._all()
        }

    def _all(self) -> list[tuple[int, Mapping[str, Any]]]:
        if self._fails:
            return []
        try:
            every = [(index, self._gpus.memory(index)) for index in range(self._gpus.count())]
        except Exception as error:  # noqa: BLE001  an allocator of the user's own may have no figures
            self._fails = True
            warn(f"how full GPUs are is not known: {type(error).__name__}: {str(error)[:200]}")
            return []
        return [one for one in every if one[0] in self._seen or _amount(one[1], "reserved_bytes", "peak")]

    def _name(self, index: int) -> str:
        if index not in self._names:
            self._names[index] = self._gpus.uuid(index) or named(os.environ, index)
        return self._names[index]


class _MemoryHistory:
    """What of one GPU was seen, from what it was before on."""

    def __init__(self, before: Mapping[str, Any]) -> None:
        self._before: int | None = _amount(before, "allocated_bytes", "peak")
        self._told = int(before.get("num_ooms", 0))
        self._peak = self._failed = 0

    def follow(self, stats: Mapping[str, Any]) -> Memory:
        """What there is to say now."""
        allocated, peak = _amount(stats, "allocated_bytes", "current"), _amount(stats, "allocated_bytes", "peak")
        if peak != self._before:  # it is of the run, since it has risen, or was reset
            self._before = None
            self._peak = max(self._peak, peak)
        self._peak = max(self._peak, allocated)
        told = int(stats.get("num_ooms", 0))
        self._failed += told - self._told if told >= self._told else told
        self._told = told
        return Memory(allocated, _amount(stats, "reserved_bytes", "current"), self._peak, self._failed)


def _amount(stats: Mapping[str, Any], kind: str, of: str) -> int:
    return int(stats.get(kind, {}).get("all", {}).get(of, 0))
