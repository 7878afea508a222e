"""The GPUs that workers hung at, left alone for a while so that the others go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.nvml.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trackside_daemon.nvml.reading import GpuReading

FIRST, LAST = 60.0, 600.0
"""Seconds without a question after the first hang, and at most. Each try that hangs costs all GPUs a worker."""


class Avoided:
    """Indexes of GPUs, each with its own back-off, for as long as they mean the same GPUs.

    All times are of one clock that only goes forward. Any thread may call `at`.
    """

    def __init__(self) -> None:
        self._until: dict[int, float] = {}
        self._backoffs: dict[int, Backoff] = {}
        self._uuids: list[str] = []

    def hung(self, index: int, now: float) -> None:
        """A worker hung there."""
        self._until[index] = now + self._backoffs.setdefault(index, Backoff(FIRST, LAST)).wait()

    def read(self, gpus: Sequence[GpuReading], asked_without: frozenset[int]) -> bool:
        """Heeds a reading, which has all GPUs in the order of their indexes.

        Args:
            gpus: Without a UUID where the worker could not ask for it.
            asked_without: The indexes that its request left alone.

        Returns:
            Whether it can be used: False when indexes were left alone that mean other GPUs by now, which are all
            forgotten, or that were forgotten since the request.
        """
        if not asked_without <= self._until.keys():
            return False
        uuids = [gpu.uuid for gpu in gpus]
        if self._uuids and not _same(uuids, self._uuids):
            self._uuids = [] if asked_without else uuids
            self._until, self._backoffs = {}, {}
            return not asked_without
        self._uuids = [new or old for new, old in zip(uuids, self._uuids or uuids, strict=True)]
        for index in {gpu.index for gpu in gpus} - asked_without:
            self._until.pop(index, None)
            self._backoffs.pop(index, None)
        return True

    def at(self, now: float) -> frozenset[int]:
        """Those that are not to be asked."""
        return frozenset(index for index, until in self._until.copy().items() if now < until)


def _same(new: Sequence[str], old: Sequence[str]) -> bool:
    return len(new) == len(old) and all(
        one == other or not (one and other) for one, other in zip(new, old, strict=True)
    )
