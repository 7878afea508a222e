"""How full /dev/shm was lately where a rank trains: what its data loader's workers pass their batches through."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trackside_daemon.model.rank_process import RankProcess

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
    """Remembers what ranks say of their /dev/shm: to ask for it from here could wait for ever, as for any mount."""

    def __init__(self) -> None:
        self._told: dict[int, list[tuple[float, Use]]] = {}

    def hear(self, members: Iterable[RankProcess], now: float) -> None:
        """Once a tick, at *now* in seconds of the monotonic clock."""
        for member in members:
            if (use := _use(member)) is not None:
                self._told.setdefault(member.pid, []).append((now, use))
        self._told = {pid: kept for pid, told in self._told.items() if (kept := _lately(told, now))}

    def most(self) -> dict[int, Use]:
        """The fullest that it was lately, by the rank's pid; nobody that has not told."""
        return {
            pid: max((use for _, use in told), key=lambda use: use.used / use.size) for pid, told in self._told.items()
        }


def _use(member: RankProcess) -> Use | None:
    room = member.room
    if room is None or not room.shm_size:
        return None
    return Use(max(room.shm_used or 0, room.shm_peak or 0), room.shm_size)


def _lately(told: list[tuple[float, Use]], now: float) -> list[tuple[float, Use]]:
    return [one for one in told if one[0] > now - MEMORY_SECONDS]
