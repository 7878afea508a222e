"""Identity of a GPU: the labels of ``trackside_gpu_info``."""

from collections.abc import Callable
from typing import Any

from trackside_daemon.nvml.worker.library import CountedNvml

# Names by `NVML_DEVICE_ARCH_...`.
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

UNKNOWN = 0xFFFFFFFF  # number that drivers return instead of one that they do not know


def identity(nvml: CountedNvml, handle: Any) -> dict[str, str]:
    """Return the labels; empty where the driver does not report a value.

    Raises:
        NVMLError_GpuIsLost: The GPU fell off the bus.
    """

    def capability() -> str:
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
        return f"{major}.{minor}"

    return {
        "name": text_or_empty(nvml, lambda: nvml.nvmlDeviceGetName(handle)),
        "pci_bus_id": text_or_empty(nvml, lambda: nvml.nvmlDeviceGetPciInfo(handle).busId),
        "serial": text_or_empty(nvml, lambda: nvml.nvmlDeviceGetSerial(handle)),
        "vbios_version": text_or_empty(nvml, lambda: nvml.nvmlDeviceGetVbiosVersion(handle)),
        "architecture": text_or_empty(nvml, lambda: ARCHITECTURES.get(nvml.nvmlDeviceGetArchitecture(handle), "")),
        "compute_capability": text_or_empty(nvml, capability),
        "minor": text_or_empty(nvml, lambda: _number(nvml.nvmlDeviceGetMinorNumber(handle))),
        "numa_node": text_or_empty(nvml, lambda: _number(nvml.nvmlDeviceGetNumaNodeId(handle))),
        "source": "nvml",
    }


def text_or_empty(nvml: CountedNvml, read: Callable[[], str | bytes]) -> str:
    """Return the text of a call, with U+FFFD where it is not UTF-8; empty if the call fails or the text is N/A.

    Raises:
        NVMLError_GpuIsLost: The GPU fell off the bus.
    """
    try:
        text = read()
    except UnicodeDecodeError as error:
        text = error.object
    except nvml.NVMLError_GpuIsLost:
        raise
    # A label is not worth a GPU, whatever else a newer pynvml may raise.
    except Exception:  # noqa: BLE001
        return ""
    text = text.decode(errors="replace") if isinstance(text, bytes) else text
    return "" if text.strip("[]") == "N/A" else text


def _number(number: int) -> str:
    return str(number) if 0 <= number < UNKNOWN else ""
