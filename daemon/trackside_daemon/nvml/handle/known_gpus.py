"""Memory of the GPUs that have been up, so that a lost GPU keeps its UUID and stays visible."""

from __future__ import annotations

import msgspec

from trackside_daemon.nvml.reading import DOWN, GpuReading, Reading


class KnownGpus:
    """GPUs that have been up since this object was made, by UUID."""

    def __init__(self) -> None:
        self._gpus: dict[str, GpuReading] = {}

    def accept(self, reading: Reading) -> Reading:
        """Return the reading with missing UUIDs restored and with the GPUs that are gone.

        A worker that never saw a lost GPU up cannot report its UUID.
        """
        present = {gpu.uuid for gpu in reading.gpus}
        by_index = {gpu.index: gpu for uuid, gpu in self._gpus.items() if uuid not in present}
        gpus = [
            _with_identity(gpu, by_index[gpu.index]) if _is_nameless(gpu) and gpu.index in by_index else gpu
            for gpu in reading.gpus
        ]
        self._gpus |= {
            gpu.uuid: GpuReading(gpu.index, gpu.uuid, gpu.info, DOWN) for gpu in gpus if gpu.uuid and gpu.values != DOWN
        }
        present = {gpu.uuid for gpu in gpus}
        gone = [gpu for uuid, gpu in self._gpus.items() if uuid not in present]
        return msgspec.structs.replace(reading, gpus=gpus, gone=gone)


def _is_nameless(gpu: GpuReading) -> bool:
    return not gpu.uuid and gpu.values == DOWN


def _with_identity(gpu: GpuReading, known: GpuReading) -> GpuReading:
    return msgspec.structs.replace(known, unsupported=gpu.unsupported)
