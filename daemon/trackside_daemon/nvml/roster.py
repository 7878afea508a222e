"""The GPUs that have been up, so that one that is lost keeps its name and stays in sight."""

from __future__ import annotations

import msgspec

from trackside_daemon.nvml.reading import DOWN, GpuReading, Reading


class Roster:
    """Every GPU that was up since the daemon began, or since `forget`."""

    def __init__(self) -> None:
        self._seen: dict[str, GpuReading] = {}

    def call(self, reading: Reading) -> Reading:
        """The reading, in which a lost GPU that its worker never saw up has its uuid again, and which says who is gone."""
        present = {gpu.uuid for gpu in reading.gpus}
        at = {gpu.index: gpu for uuid, gpu in self._seen.items() if uuid not in present}
        gpus = [at.get(gpu.index, gpu) if not gpu.uuid and gpu.values == DOWN else gpu for gpu in reading.gpus]
        self._seen |= {
            gpu.uuid: GpuReading(gpu.index, gpu.uuid, gpu.info, DOWN) for gpu in gpus if gpu.uuid and gpu.values != DOWN
        }
        present = {gpu.uuid for gpu in gpus}
        gone = [gpu for uuid, gpu in self._seen.items() if uuid not in present]
        return msgspec.structs.replace(reading, gpus=gpus, gone=gone)

    def forget(self) -> None:
        """From now on other GPUs may be there on purpose."""
        self._seen.clear()
