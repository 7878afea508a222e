"""The GPUs that have been up, so that one that is lost keeps its name and stays in sight."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from trackside_daemon.nvml.reading import GpuReading

if TYPE_CHECKING:
    from collections.abc import Collection

    from trackside_daemon.nvml.reading import Reading, Value

DOWN: list[Value] = [("up", (), 0.0)]


class Roster:
    """Every GPU that was up since the daemon began, or since `forget`."""

    def __init__(self) -> None:
        self._seen: dict[str, GpuReading] = {}
        self._lost: set[str] = set()

    def call(self, reading: Reading) -> Reading:
        """The reading, in which a lost GPU that its worker never saw up has its uuid again, and which says who is gone."""
        present = {gpu.uuid for gpu in reading.gpus}
        at = {gpu.index: gpu for uuid, gpu in self._seen.items() if uuid not in present}
        gpus = [_down(at[gpu.index]) if not gpu.uuid and gpu.index in at else gpu for gpu in reading.gpus]
        self._seen |= {gpu.uuid: gpu for gpu in gpus if gpu.uuid and gpu.values != DOWN}
        present = {gpu.uuid for gpu in gpus}
        gone = [_down(gpu) for uuid, gpu in self._seen.items() if uuid not in present]
        return msgspec.structs.replace(reading, gpus=gpus, gone=gone)

    def lost(self, reading: Reading, avoided: Collection[int]) -> bool:
        """Whether a GPU is lost that was up before: once for each loss. One that was *avoided* has not been asked."""
        down = {gpu.uuid for gpu in reading.gpus if gpu.values == DOWN and gpu.index not in avoided}
        down |= {gpu.uuid for gpu in reading.gone}
        up = {gpu.uuid for gpu in reading.gpus if gpu.values != DOWN}
        news = (down & self._seen.keys()) - self._lost
        self._lost = (self._lost | news) - up
        return bool(news)

    def forget(self) -> None:
        """After this, other GPUs may be there on purpose."""
        self._seen.clear()
        self._lost.clear()


def _down(gpu: GpuReading) -> GpuReading:
    return GpuReading(gpu.index, gpu.uuid, gpu.info, DOWN)
