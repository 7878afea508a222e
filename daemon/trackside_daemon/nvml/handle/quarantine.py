"""Quarantine of the GPUs at which workers hung, so that the other GPUs are still read."""

from collections.abc import Sequence

from trackside_daemon.model.backoff import Backoff
from trackside_daemon.nvml.handle.worker_protocol import FIRST_QUARANTINE, MAX_QUARANTINE
from trackside_daemon.nvml.reading import GpuReading


class Quarantine:
    """Indexes of quarantined GPUs, each with its back-off, valid while the indexes mean the same GPUs.

    All times are of one monotonic clock. Any thread may call `indexes`.
    """

    def __init__(self) -> None:
        self._until: dict[int, float] = {}
        self._backoffs: dict[int, Backoff] = {}
        self._uuids: list[str] = []

    def add(self, index: int, now: float) -> None:
        """Quarantine a GPU at which a worker hung."""
        self._until[index] = (
            now + self._backoffs.setdefault(index, Backoff(FIRST_QUARANTINE, MAX_QUARANTINE)).next_delay()
        )

    def accept(self, gpus: Sequence[GpuReading], skipped: frozenset[int]) -> bool:
        """Update the quarantine from a reading.

        Args:
            gpus: All GPUs in the order of their indexes; the UUID is empty if the worker could not read it.
            skipped: Indexes that the request skipped.

        Returns:
            Whether the reading is usable. It is not if indexes were skipped that now mean other GPUs, or that were
            released after the request. If the indexes mean other GPUs, the quarantine ends for all.
        """
        if not skipped <= self._until.keys():
            return False
        uuids = [gpu.uuid for gpu in gpus]
        if self._uuids and not _same_gpus(uuids, self._uuids):
            self._uuids = [] if skipped else uuids
            self._until = {}
            self._backoffs = {}
            return not skipped
        self._uuids = [new or old for new, old in zip(uuids, self._uuids or uuids, strict=True)]
        for index in {gpu.index for gpu in gpus} - skipped:
            self._until.pop(index, None)
            self._backoffs.pop(index, None)
        return True

    def indexes(self, now: float) -> frozenset[int]:
        """Return the indexes of the GPUs to skip now."""
        # A copy, because the thread that reads may add an index meanwhile.
        return frozenset(index for index, until in self._until.copy().items() if now < until)


def _same_gpus(new: Sequence[str], old: Sequence[str]) -> bool:
    """Compare UUIDs in order; an empty one matches any."""
    return len(new) == len(old) and all(
        new_uuid == old_uuid or not (new_uuid and old_uuid) for new_uuid, old_uuid in zip(new, old, strict=True)
    )
