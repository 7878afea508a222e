"""Decision when the loss of a GPU requires a new worker.

NVML handles are undefined after a loss, so the worker that saw it should not read on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.nvml.backoff import Backoff
from trackside_daemon.nvml.reading import DOWN

if TYPE_CHECKING:
    from collections.abc import Collection

    from trackside_daemon.nvml.reading import GpuReading

# Seconds after the first loss of a GPU in which further losses of it replace no worker; doubled with each.
FIRST_TOLERANCE = 60.0
# Maximum of these seconds; after a longer time without a loss the GPU starts again at the first.
MAX_TOLERANCE = 600.0


class LostGpuPolicy:
    """GPUs that are up or lost, by UUID, across workers; all times are of one monotonic clock."""

    def __init__(self) -> None:
        self._up: set[str] = set()
        self._lost: set[str] = set()
        self._tolerated_until: dict[str, float] = {}
        self._backoffs: dict[str, Backoff] = {}

    def worker_replaced(self) -> None:
        """Forget which GPUs are up: the new worker has never seen a GPU up that stays lost."""
        self._up = set()
        self._lost = set()

    def accept(self, gpus: Collection[GpuReading], now: float) -> bool:
        """Return whether to replace the worker after this reading."""
        # The reading after the loss decides, since the Xid that explains the loss may come between the two.
        replace = any(now >= self._tolerated_until.get(uuid, now) for uuid in self._lost)
        if replace:
            for uuid in self._lost:
                self._tolerate(uuid, now)
        up = {gpu.uuid for gpu in gpus if gpu.uuid and gpu.values != DOWN}
        self._lost |= self._up - up
        self._up = up
        return replace

    def _tolerate(self, uuid: str, now: float) -> None:
        if now - self._tolerated_until.get(uuid, now) > MAX_TOLERANCE:
            del self._backoffs[uuid]
        delay = self._backoffs.setdefault(uuid, Backoff(FIRST_TOLERANCE, MAX_TOLERANCE)).next_delay()
        self._tolerated_until[uuid] = now + delay
