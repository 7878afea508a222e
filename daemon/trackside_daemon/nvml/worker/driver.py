"""The NVIDIA driver, asked once a cycle through the ``pynvml`` module that the worker imports."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from trackside_daemon.nvml.groups import chosen
from trackside_daemon.nvml.readers.identity import identity, text
from trackside_daemon.nvml.readers.unsupported import lasts
from trackside_daemon.nvml.reading import DOWN, PERMISSION, SILENT, GpuReading, Reading
from trackside_daemon.nvml.worker.events import DriverUnbind, GpuEvents
from trackside_daemon.nvml.worker.gpu import Gpu
from trackside_daemon.nvml.worker.library import Library
from trackside_daemon.nvml.worker.slow_driver import Pace

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from trackside_daemon.nvml.groups import Group


AVOIDED = "a worker hung here, so it is left alone for a while"
UNNAMED = "the driver does not say its UUID; see dmesg for NVRM and Xid"
"""Why a GPU is not up."""

HIDDEN = f"{PERMISSION} to open it, as where a container was not given it; it is left out"

UNBOUND = "the NVIDIA driver is being taken away from a GPU; the worker lets go of all, so that nothing holds that up"


class Driver:
    """NVML, from its first call on.

    Args:
        pynvml: The module.
        groups: What is read of each GPU; None for the default.
        reading: Told the index of a GPU before anything is asked of it, so that a hang can be blamed.
        clock: Seconds of a clock that only goes forward.
    """

    def __init__(
        self,
        pynvml: Any,
        groups: Mapping[str, Group] | None = None,
        reading: Callable[[int], None] = lambda _: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._nvml = Library(pynvml)
        self._groups = chosen() if groups is None else groups
        self._reading = reading
        self._pace = Pace()
        self._clock = clock
        self._versions: dict[str, str] | None = None
        self._gpus: dict[str, Gpu] = {}
        self._at: dict[int, str] = {}
        self._handles: dict[str, Any] = {}
        self._events = GpuEvents(Library(pynvml))
        self._unbind = DriverUnbind(Library(pynvml))

    def read(self, avoid: Collection[int] = (), interval: float = math.inf) -> Reading:
        """Every GPU that NVML counts. The first call initialises NVML, which may take seconds.

        Args:
            avoid: Indexes of GPUs that nothing is asked of, since a worker before this one hung there.
            interval: Seconds in which this is to be done; where it takes longer, what is optional is left out.
        """
        nvml = self._nvml
        if self._unbind.told.is_set():
            return Reading(error=UNBOUND, reason="gpu_unbind")
        try:
            count = self._count()
        except nvml.NVMLError as error:
            return self._refusal(error)
        if not count:
            missing = "NVML sees no GPU: check lspci, or that this container was given one"
            return Reading(error=missing, absent=True, reason="no_gpu")
        gpus, hidden = self._all(count, avoid, interval)
        if not gpus:
            return self._refusal(nvml.NVMLError(nvml.NVML_ERROR_NO_PERMISSION))
        return Reading(
            gpus,
            self._versions or {},
            calls=nvml.calls,
            seconds=nvml.seconds,
            rejected=self._rejected(),
            xids=self._events.xids(),
            hidden=hidden,
        )

    def _count(self) -> int:
        if self._versions is None:
            self._nvml.nvmlInit()
            self._versions = self._read_versions()
            self._unbind.start()
        count: int = self._nvml.nvmlDeviceGetCount()
        return count

    def _all(self, count: int, avoid: Collection[int], interval: float) -> tuple[list[GpuReading], list[GpuReading]]:
        """The GPUs that NVML counts, and of those the ones that may not be opened here, as in a container of its own."""
        begun = self._clock()
        self._handles = {}
        gpus, hidden = [], []
        for index in range(count):
            try:
                gpus.append(self._lost(index, AVOIDED) if index in avoid else self._gpu(index))
            except self._nvml.NVMLError_NoPermission:
                hidden.append(GpuReading(index, "", {}, [], {"nvmlDeviceGetHandleByIndex": HIDDEN}))
        self._pace.keep(self._clock() - begun, interval, [self._gpus[uuid] for uuid in self._handles])
        self._events.watch(self._handles)
        return gpus, hidden

    def _gpu(self, index: int) -> GpuReading:
        """What is read of it, or that it is lost.

        Raises:
            NVMLError_NoPermission: It may not be opened here.
        """
        # The handle is fetched anew: after a loss a kept one is undefined, and an index may come to mean another GPU.
        self._reading(index)
        try:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = text(self._nvml, lambda: self._nvml.nvmlDeviceGetUUID(handle))
            if not uuid:
                return self._lost(index, UNNAMED)
            gpu = self._known(uuid, handle)
            self._at[index] = uuid
            self._heed_events(gpu)
            values = [("up", (), 1.0), *gpu.read(self._nvml, handle)]
        except self._nvml.NVMLError_NoPermission:
            raise
        except self._nvml.NVMLError as error:
            return self._lost(index, f"{self._nvml.result(error.value)}: {SILENT}")
        self._handles[uuid] = handle
        return GpuReading(index, uuid, gpu.info, values, gpu.refusals.told())

    def _known(self, uuid: str, handle: Any) -> Gpu:
        gpu = self._gpus.get(uuid)
        if gpu is None:
            gpu = self._gpus[uuid] = Gpu(uuid, identity(self._nvml, handle), self._groups, self._clock)
        elif not gpu.info["name"]:  # the driver was not ready to say it
            gpu.info = identity(self._nvml, handle)
        return gpu

    def _heed_events(self, gpu: Gpu) -> None:
        if self._events.reconfigured(gpu.uuid):
            gpu.refusals.clear()
        refused = self._events.refused.get(gpu.uuid)
        if refused is None:
            gpu.refusals.lift("xid")
        else:
            passing = f"the driver answers {refused} when it is asked for events; it is asked again"
            gpu.refusals.add("xid", refused if lasts(refused) else passing)

    def _lost(self, index: int, why: str) -> GpuReading:
        known = self._gpus.get(self._at.get(index, ""))
        if known:
            known.refusals.clear()  # when it returns it was reset
        uuid, info = (known.uuid, known.info) if known else ("", {})
        return GpuReading(index, uuid, info, DOWN, {"up": why})

    def _rejected(self) -> dict[str, int]:
        rejected: dict[str, int] = {}
        for gpu in self._gpus.values():
            for family, times in gpu.rejected.items():
                rejected[family] = rejected.get(family, 0) + times
        return rejected

    def _read_versions(self) -> dict[str, str]:
        # The _v2 of the last one would load libcuda.
        return {
            "driver_version": text(self._nvml, self._nvml.nvmlSystemGetDriverVersion),
            "nvml_version": text(self._nvml, self._nvml.nvmlSystemGetNVMLVersion),
            "cuda_version": text(self._nvml, lambda: _cuda_version(self._nvml.nvmlSystemGetCudaDriverVersion())),
        }

    def _refusal(self, error: Any) -> Reading:
        nvml = self._nvml
        if error.value == nvml.NVML_ERROR_LIBRARY_NOT_FOUND:
            return Reading(
                error="libnvidia-ml.so.1 not found; install the NVIDIA driver", absent=True, reason="no_driver"
            )
        if error.value == nvml.NVML_ERROR_DRIVER_NOT_LOADED:
            return Reading(
                error="the NVIDIA kernel module is not loaded; run modprobe nvidia, or reboot",
                absent=True,
                reason="no_driver",
            )
        remedy = {
            nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "the driver was upgraded under a running kernel module; reboot",
            nvml.NVML_ERROR_NO_PERMISSION: "give the daemon's user read and write access to /dev/nvidia*",
        }.get(error.value, "see whether nvidia-smi works, and dmesg for NVRM and Xid")
        reason = nvml.result(error.value)
        return Reading(error=f"NVML answers error {error.value} ({error}); {remedy}", reason=reason)


def _cuda_version(number: int) -> str:
    """``13.1`` of 13010."""
    return f"{number // 1000}.{number % 1000 // 10}"
