"""Who a GPU is: what the labels of ``trackside_gpu_info`` say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from trackside_daemon.nvml.worker.library import Library

ARCHITECTURES = {
    2: "kepler",
    3: "maxwell",
    4: "pascal",
    5: "volta",
    6: "turing",
    7: "ampere",
    8: "ada",
    9: "hopper",
    10: "blackwell",
    13: "rubin",
}
"""By ``NVML_DEVICE_ARCH_...``."""

UNKNOWN = 0xFFFFFFFF
"""What drivers answer for a number that they do not know."""


def identity(nvml: Library, handle: Any) -> dict[str, str]:
    """By label; empty where the driver does not know or does not say.

    Raises:
        NVMLError_GpuIsLost: The GPU fell off the bus.
    """
    return {
        "name": text(nvml, lambda: nvml.nvmlDeviceGetName(handle)),
        "pci_bus_id": text(nvml, lambda: nvml.nvmlDeviceGetPciInfo(handle).busId),
        "serial": text(nvml, lambda: nvml.nvmlDeviceGetSerial(handle)),
        "vbios_version": text(nvml, lambda: nvml.nvmlDeviceGetVbiosVersion(handle)),
        "architecture": text(nvml, lambda: ARCHITECTURES.get(nvml.nvmlDeviceGetArchitecture(handle), "")),
        "compute_capability": text(nvml, lambda: "{}.{}".format(*nvml.nvmlDeviceGetCudaComputeCapability(handle))),
        "minor": text(nvml, lambda: _number(nvml.nvmlDeviceGetMinorNumber(handle))),
        "numa_node": text(nvml, lambda: _number(nvml.nvmlDeviceGetNumaNodeId(handle))),
        "source": "nvml",
    }


def text(nvml: Library, read: Callable[[], str | bytes]) -> str:
    """What the call says; empty when it refuses, fails or does not know, and with U+FFFD where it is not UTF-8.

    Raises:
        NVMLError_GpuIsLost: The GPU fell off the bus.
    """
    try:
        said = read()
    except UnicodeDecodeError as error:
        said = error.object
    except nvml.NVMLError_GpuIsLost:
        raise
    # A label is not worth a GPU, whatever a newer pynvml raises beside its own errors.
    except Exception:  # noqa: BLE001
        return ""
    said = said.decode(errors="replace") if isinstance(said, bytes) else said
    return "" if said.strip("[]") == "N/A" else said


def _number(number: int) -> str:
    return str(number) if 0 <= number < UNKNOWN else ""
