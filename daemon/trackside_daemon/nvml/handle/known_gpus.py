"""The GPUs that have been up, so that one that is lost keeps its name and stays in sight."""

from __future__ import annotations

import msgspec

from trackside_daemon.nvml.reading import DOWN, GpuReading, Reading


class Roster:
    """Every GPU that was up since this began."""

    def __init__(self) -> None:
        self._seen: dict[str, GpuReading] = {}

    def call(self, reading: Reading) -> Reading:
        """The reading, in which a lost GPU that its worker never saw up has its uuid again, and which says who is gone."""
        present = {gpu.uuid for gpu in reading.gpus}
        at = {gpu.index: gpu for uuid, gpu in self._seen.items() if uuid not in present}
        gpus = [_named(gpu, at[gpu.index]) if _is_nameless(gpu) and gpu.index in at else gpu for gpu in reading.gpus]
        self._seen |= {
            gpu.uuid: GpuReading(gpu.index, gpu.uuid, gpu.info, DOWN) for gpu in gpus if gpu.uuid and gpu.values != DOWN
        }
        present = {gpu.uuid for gpu in gpus}
        gone = [gpu for uuid, gpu in self._seen.items() if uuid not in present]
        return msgspec.structs.replace(reading, gpus=gpus, gone=gone)


def _is_nameless(gpu: GpuReading) -> bool:
    return not gpu.uuid and gpu.values == DOWN


def _named(gpu: GpuReading, known: GpuReading) -> GpuReading:
    return msgspec.structs.replace(known, refusals=gpu.refusals)
