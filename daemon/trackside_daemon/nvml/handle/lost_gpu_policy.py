"""When the loss of a GPU is to cost a worker, whose handles are undefined after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.nvml.backoff import Backoff
from trackside_daemon.nvml.reading import DOWN

if TYPE_CHECKING:
    from collections.abc import Collection

    from trackside_daemon.nvml.reading import GpuReading

FIRST, LAST = 60.0, 600.0
"""Seconds for which further losses of the same GPU cost no worker, after the first and at most. One that has been longer
without a loss begins anew."""


class Losses:
    """What the readings of one worker after another say, by UUID; all times are of one clock that only goes forward."""

    def __init__(self) -> None:
        self._up: set[str] = set()
        self._lost: set[str] = set()
        self._until: dict[str, float] = {}
        self._backoffs: dict[str, Backoff] = {}

    def replaced(self) -> None:
        """The next reading is a new worker's, which has never seen a GPU up that stays lost."""
        self._up, self._lost = set(), set()

    def cost(self, gpus: Collection[GpuReading], now: float) -> bool:
        """Whether the worker is to end after this reading.

        It is not the reading with the loss that says so but one after it: the Xid may have come between the two.
        """
        due = any(now >= self._until.get(uuid, now) for uuid in self._lost)
        if due:
            for uuid in self._lost:
                self._count(uuid, now)
        up = {gpu.uuid for gpu in gpus if gpu.uuid and gpu.values != DOWN}
        self._lost |= self._up - up
        self._up = up
        return due

    def _count(self, uuid: str, now: float) -> None:
        if now - self._until.get(uuid, now) > LAST:
            del self._backoffs[uuid]
        self._until[uuid] = now + self._backoffs.setdefault(uuid, Backoff(FIRST, LAST)).wait()
