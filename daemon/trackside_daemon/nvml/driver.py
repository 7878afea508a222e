"""The NVIDIA driver, asked once a cycle through the ``pynvml`` module that the worker imports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trackside_daemon.nvml.families import measure
from trackside_daemon.nvml.reading import GpuReading, Reading

if TYPE_CHECKING:
    from collections.abc import Callable


class Driver:
    """NVML, from its first call on.

    Args:
        nvml: The ``pynvml`` module.
    """

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._versions: dict[str, str] | None = None
        self._known: dict[int, GpuReading] = {}

    def read(self) -> Reading:
        """Every GPU that NVML counts. The first call initialises NVML, which may take seconds."""
        nvml = self._nvml
        try:
            if self._versions is None:
                nvml.nvmlInit()
                self._versions = self._read_versions()
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            return self._refusal(error)
        if not count:
            return Reading(error="NVML sees no GPU: check lspci, or that this container was given one", absent=True)
        return Reading([self._gpu(index) for index in range(count)], self._versions)

    def _gpu(self, index: int) -> GpuReading:
        # The handle is fetched anew: after a loss a kept one is undefined, and an index may come to mean another GPU.
        try:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = self._text(lambda: self._nvml.nvmlDeviceGetUUID(handle))
            if index not in self._known or self._known[index].uuid != uuid:
                self._known[index] = GpuReading(index, uuid, self._info(handle), [])
            values = [("up", (), 1.0), *measure(self._nvml, handle)]
        except self._nvml.NVMLError:
            values = [("up", (), 0.0)]
        known = self._known.get(index) or GpuReading(index, "", {"source": "nvml"}, [])
        return GpuReading(index, known.uuid, known.info, values)

    def _info(self, handle: Any) -> dict[str, str]:
        return {
            "name": self._text(lambda: self._nvml.nvmlDeviceGetName(handle)),
            "pci_bus_id": self._text(lambda: self._nvml.nvmlDeviceGetPciInfo(handle).busId),
            "source": "nvml",
        }

    def _read_versions(self) -> dict[str, str]:
        # The _v2 of the last one would load libcuda.
        return {
            "driver_version": self._text(self._nvml.nvmlSystemGetDriverVersion),
            "nvml_version": self._text(self._nvml.nvmlSystemGetNVMLVersion),
            "cuda_version": self._text(lambda: _cuda_version(self._nvml.nvmlSystemGetCudaDriverVersion())),
        }

    def _text(self, read: Callable[[], str | bytes]) -> str:
        """What the call says; empty when it refuses, and with U+FFFD where it is not UTF-8.

        Raises:
            NVMLError_GpuIsLost: The GPU fell off the bus.
        """
        try:
            text = read()
        except UnicodeDecodeError as error:
            text = error.object
        except self._nvml.NVMLError_GpuIsLost:
            raise
        except self._nvml.NVMLError:
            text = ""
        return text.decode(errors="replace") if isinstance(text, bytes) else text

    def _refusal(self, error: Any) -> Reading:
        nvml = self._nvml
        if error.value == nvml.NVML_ERROR_LIBRARY_NOT_FOUND:
            return Reading(error="libnvidia-ml.so.1 not found; install the NVIDIA driver", absent=True)
        if error.value == nvml.NVML_ERROR_DRIVER_NOT_LOADED:
            return Reading(error="the NVIDIA kernel module is not loaded; run modprobe nvidia, or reboot", absent=True)
        remedy = {
            nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "the driver was upgraded under a running kernel module; reboot",
            nvml.NVML_ERROR_NO_PERMISSION: "give the daemon's user read and write access to /dev/nvidia*",
        }.get(error.value, "see whether nvidia-smi works, and dmesg for NVRM and Xid")
        return Reading(error=f"NVML answers error {error.value} ({error}); {remedy}")


def _cuda_version(number: int) -> str:
    """``13.1`` of 13010."""
    return f"{number // 1000}.{number % 1000 // 10}"
