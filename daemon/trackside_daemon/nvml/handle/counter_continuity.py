"""Counters that a worker counts from its own beginning, carried on over the workers that replace it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from trackside_daemon.nvml.reading import Reading

if TYPE_CHECKING:
    from collections.abc import Callable

    from trackside_daemon.nvml.reading import GpuReading, Value

MADE = {"busy_seconds_total"}
"""Families that the worker sums up itself. All other counters are the driver's own, and go on without us."""

Key = TypeVar("Key")
Count = TypeVar("Count")


class Continued:
    """What all workers so far have counted."""

    def __init__(self) -> None:
        self._before = self._total = Reading()
        self._made_before: dict[tuple[str, str, tuple[str, ...]], float] = {}
        self._made = dict(self._made_before)

    def replaced(self) -> None:
        """The next reading is a new worker's."""
        self._before = self._total
        self._made_before = dict(self._made)

    def add(self, reading: Reading) -> Reading:
        """The reading, its counters being those of all workers."""
        before = self._before
        self._total = msgspec.structs.replace(
            reading,
            gpus=[self._continue(gpu) for gpu in reading.gpus],
            calls=_merge(before.calls, reading.calls, lambda old, new: _merge(old, new, int.__add__)),
            seconds=_merge(before.seconds, reading.seconds, float.__add__),
            rejected=_merge(before.rejected, reading.rejected, int.__add__),
            xids=_merge(before.xids, reading.xids, lambda old, new: _merge(old, new, _add_xid)),
        )
        return self._total

    def _continue(self, gpu: GpuReading) -> GpuReading:
        places = [place for place, value in enumerate(gpu.values) if value[0] in MADE]
        if not places:
            return gpu
        values = gpu.values.copy()
        for place in places:
            values[place] = self._continued(gpu.uuid, *values[place])
        return msgspec.structs.replace(gpu, values=values)

    def _continued(self, uuid: str, family: str, labels: tuple[str, ...], number: float) -> Value:
        key = (uuid, family, labels)
        self._made[key] = self._made_before.get(key, 0.0) + number
        return family, labels, self._made[key]


def _merge(old: dict[Key, Count], new: dict[Key, Count], add: Callable[[Count, Count], Count]) -> dict[Key, Count]:
    return {**old, **{key: add(old[key], count) if key in old else count for key, count in new.items()}}


def _add_xid(old: tuple[int, float], new: tuple[int, float]) -> tuple[int, float]:
    return old[0] + new[0], max(old[1], new[1])
