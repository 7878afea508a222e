"""Recent use of /dev/shm, through which data loader workers pass batches, as the ranks report it."""

from collections.abc import Iterable
from typing import NamedTuple

from trackside_daemon.model.rank_process import RankProcess

# What a dead worker had filled is soon free again.
MEMORY_SECONDS = 10.0  # time for which the largest use is remembered
FULL = 0.9  # fraction from which /dev/shm counts as full: a write did not fit into the rest


class ShmUse(NamedTuple):
    """Bytes used, and the size in bytes."""

    used: int
    size: int

    @property
    def is_full(self) -> bool:
        """True when at least `FULL` of it is used."""
        return self.used >= FULL * self.size

    def __str__(self) -> str:
        """Return, for example, ``63.9 of 64 MiB``."""
        power = max(1, min(4, (max(self.size, 1).bit_length() - 1) // 10))
        used, size = (f"{amount / 1024**power:.1f}".removesuffix(".0") for amount in self)
        return f"{used} of {size} {'KMGT'[power - 1]}iB"


class ShmHistory:
    """The recent use of /dev/shm of each rank, as its client reports it."""

    # The daemon does not call statvfs on a rank's /dev/shm: like every mount, it could hang for ever.

    def __init__(self) -> None:
        self._reports: dict[int, list[tuple[float, ShmUse]]] = {}

    def update(self, rank_processes: Iterable[RankProcess], now: float) -> None:
        """Record the reports of a tick, at *now* in seconds of the monotonic clock."""
        for process in rank_processes:
            if (use := _use(process)) is not None:
                self._reports.setdefault(process.pid, []).append((now, use))
        recent = {
            pid: [report for report in reports if report[0] > now - MEMORY_SECONDS]
            for pid, reports in self._reports.items()
        }
        self._reports = {pid: reports for pid, reports in recent.items() if reports}

    def fullest(self) -> dict[int, ShmUse]:
        """Return the fullest recent state by the rank's pid; ranks without a report are left out."""
        return {
            pid: max((use for _, use in reports), key=lambda use: use.used / use.size)
            for pid, reports in self._reports.items()
        }


def _use(process: RankProcess) -> ShmUse | None:
    room = process.room
    if room is None or not room.shm_size:
        return None
    return ShmUse(max(room.shm_used or 0, room.shm_peak or 0), room.shm_size)
