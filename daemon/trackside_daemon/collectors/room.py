"""How full /dev/shm was lately where a rank trains: what its data loader's workers pass their batches through."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trackside_daemon.member import Member

MEMORY_SECONDS = 10.0
"""For so long the most that was used is remembered: what a worker that died has filled is soon free again."""

FULL = 0.9
"""From this part on it counts as full: what was to be written did not fit into the rest."""


class Use(NamedTuple):
    """So much was used, in bytes, of *size*."""

    used: int
    size: int

    @property
    def is_full(self) -> bool:
        """Whether something larger did not fit."""
        return self.used >= FULL * self.size

    def __str__(self) -> str:
        """``63.9 of 64 MiB``."""
        power = max(1, min(4, (max(self.size, 1).bit_length() - 1) // 10))
        used, size = (f"{amount / 1024**power:.1f}".removesuffix(".0") for amount in self)
        return f"{used} of {size} {'KMGT'[power - 1]}iB"


class Rooms:
    """Looks at the /dev/shm of each rank once a tick, and hears what the rank itself says of it.

    Args:
        proc: Where the kernel's process files are; PID/root there leads into a container for who may trace its processes.
    """

    def __init__(self, proc: Path) -> None:
        self._proc = str(proc)
        self._seen: dict[int, list[tuple[float, Use]]] = {}

    def look(self, ranks: Mapping[int, Member], now: float) -> None:
        """Once a tick, at *now* in seconds of the monotonic clock."""
        for pid, member in ranks.items():
            uses = [use for use in (self._own(pid), _told(member)) if use is not None]
            self._seen.setdefault(pid, []).extend((now, use) for use in uses)
        self._seen = {pid: kept for pid, seen in self._seen.items() if (kept := _lately(seen, now))}

    def most(self) -> dict[int, Use]:
        """The fullest that it was lately, by the rank's pid; nobody that cannot tell."""
        return {
            pid: max((use for _, use in seen), key=lambda use: use.used / use.size) for pid, seen in self._seen.items()
        }

    def _own(self, pid: int) -> Use | None:
        try:
            found = os.statvfs(f"{self._proc}/{pid}/root/dev/shm")
        except OSError:  # it is gone, has none, or is not ours to look into
            return None
        size = found.f_blocks * found.f_frsize
        return Use(size - found.f_bfree * found.f_frsize, size) if size else None


def _told(member: Member) -> Use | None:
    room = member.room
    if room is None or not room.shm_size:
        return None
    return Use(max(room.shm_used or 0, room.shm_peak or 0), room.shm_size)


def _lately(seen: list[tuple[float, Use]], now: float) -> list[tuple[float, Use]]:
    return [one for one in seen if one[0] > now - MEMORY_SECONDS]
