"""NVIDIA GPUs: what the NVML worker reads, under the names that a query writes.

Every series carries ``gpu``, the index that nvidia-smi shows and that may change at a reboot, and ``uuid``, which does
not; what else identifies a GPU stands on ``trackside_gpu_info``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.collectors.base import NothingToCollect
from trackside_daemon.metric import Kind, Metric, Sample
from trackside_daemon.nvml.handle import NvmlAbsent

if TYPE_CHECKING:
    from trackside_daemon.nvml.handle import Nvml
    from trackside_daemon.nvml.reading import GpuReading


def _family(name: str, says: str, unit: str, *labels: str, kind: Kind = "gauge") -> Metric:
    tells = f"{says}, sampled by the daemon's tick."
    return Metric(f"trackside_gpu_{name}", kind, tells, ("gpu", "uuid", *labels), unit)


RATES = "nvmlDeviceGetUtilizationRates"
MEMORY_INFO = "nvmlDeviceGetMemoryInfo_v2"

#: By the short names that the worker uses.
FAMILIES = {
    metric.name.removeprefix("trackside_gpu_"): metric
    for metric in (
        _family("utilization_ratio", f"Share of time in which a kernel ran, from {RATES}", "ratio"),
        _family(
            "memory_controller_utilization_ratio",
            f"Share of time in which device memory was read or written, from {RATES}",
            "ratio",
        ),
        _family("memory_bytes", f"Size of the device memory, from {MEMORY_INFO}", "bytes"),
        _family("memory_used_bytes", f"Device memory in use, without the reserved, from {MEMORY_INFO}", "bytes"),
        _family("memory_free_bytes", f"Device memory that can be allocated, from {MEMORY_INFO}", "bytes"),
        _family("memory_reserved_bytes", f"Device memory that the driver keeps, from {MEMORY_INFO}", "bytes"),
        _family("temperature_celsius", "Temperature by sensor, from nvmlDeviceGetTemperature", "celsius", "sensor"),
        _family("power_watts", "Power that the board draws, from nvmlDeviceGetPowerUsage", "watts"),
        _family("power_limit_watts", "Power limit, from nvmlDeviceGetEnforcedPowerLimit", "watts", "limit"),
        _family(
            "energy_joules_total",
            "Energy since the driver was loaded, from nvmlDeviceGetTotalEnergyConsumption",
            "joules",
            kind="counter",
        ),
        _family("up", "1 when the GPU answers, 0 when it is lost (NVML_ERROR_GPU_IS_LOST)", ""),
    )
}
INFO = Metric(
    "trackside_gpu_info",
    "info",
    "What identifies a GPU, from nvmlDeviceGetName and nvmlDeviceGetPciInfo, sampled by the daemon's tick.",
    ("gpu", "uuid", "name", "pci_bus_id", "source"),
)
DRIVER_INFO = Metric(
    "trackside_nvidia_driver_info",
    "info",
    "Versions, from nvmlSystemGetDriverVersion, nvmlSystemGetNVMLVersion and nvmlSystemGetCudaDriverVersion, sampled by "
    "the daemon's tick.",
    ("driver_version", "nvml_version", "cuda_version"),
)
VISIBLE = Metric(
    "trackside_gpus_visible", "gauge", "GPUs that nvmlDeviceGetCount counts, sampled by the daemon's tick."
)


class GpuCollector:
    """Every reading of every GPU; what a card does not measure is left out.

    Args:
        nvml: The handle, closed by whoever made it.
        patience: Seconds to wait for a reading.
    """

    name = "gpu"
    metrics = (*FAMILIES.values(), INFO, DRIVER_INFO, VISIBLE)

    def __init__(self, nvml: Nvml, patience: float) -> None:
        self._nvml = nvml
        self._patience = patience

    def collect(self) -> list[Sample]:
        """All GPUs of one reading.

        Raises:
            NothingToCollect: There is no NVIDIA driver or no GPU.
            NvmlUnavailable: There is no reading this time.
        """
        try:
            reading = self._nvml.read(self._patience)
        except NvmlAbsent as error:
            remedy = "or switch the collector off with --no-collector.gpu"
            raise NothingToCollect(f"NVML is not available: {error}, {remedy}") from error
        samples = [Sample(VISIBLE, (), len(reading.gpus))]
        if reading.driver:
            samples.append(Sample(DRIVER_INFO, tuple(reading.driver.get(label, "") for label in DRIVER_INFO.labels), 1))
        for gpu in reading.gpus:
            samples += _samples(gpu)
        return samples


def _samples(gpu: GpuReading) -> list[Sample]:
    identity = (str(gpu.index), gpu.uuid)
    facts = tuple(gpu.info.get(label, "") for label in INFO.labels[2:])
    values = [
        Sample(FAMILIES[family], (*identity, *labels), value)
        for family, labels, value in gpu.values
        if family in FAMILIES  # after an upgrade the worker may be newer than this process
    ]
    return [Sample(INFO, (*identity, *facts), 1), *values]
