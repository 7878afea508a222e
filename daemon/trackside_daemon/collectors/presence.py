"""Which GPUs there should be: those that were seen, so that one that is lost does not simply vanish."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from trackside_daemon.nvml.reading import GpuReading

if TYPE_CHECKING:
    from collections.abc import Iterable


class Presence:
    """The GPUs that were seen, by UUID: an index may come to mean another one."""

    def __init__(self) -> None:
        self._known: dict[str, GpuReading] = {}
        self._at: dict[int, str] = {}

    def complete(self, gpus: Iterable[GpuReading]) -> list[GpuReading]:
        """The GPUs of a reading, and of those that it does not have any more a reading that they are not up.

        A lost GPU that cannot say its UUID is taken for the one that was last seen at its index.
        """
        gpus = list(gpus)
        told = {gpu.uuid for gpu in gpus if gpu.uuid}
        found = [self._named(gpu, told) for gpu in gpus]
        for gpu in found:
            if gpu.uuid:
                self._at[gpu.index] = gpu.uuid
                self._known[gpu.uuid] = GpuReading(gpu.index, gpu.uuid, gpu.info, [("up", (), 0.0)])
        return [*found, *(gpu for uuid, gpu in self._known.items() if uuid not in told)]

    def _named(self, gpu: GpuReading, told: set[str]) -> GpuReading:
        """A GPU with all that is known of it; a UUID that it is given is *told* from then on."""
        known = self._known.get(gpu.uuid or self._at.get(gpu.index, ""))
        if known is None or (not gpu.uuid and known.uuid in told):
            return gpu
        told.add(known.uuid)
        return replace(gpu, uuid=known.uuid, info=gpu.info or known.info)
