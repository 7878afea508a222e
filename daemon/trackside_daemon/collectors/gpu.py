"""NVIDIA GPUs: what the NVML worker reads, under the names that a query writes.

Every series carries ``gpu``, the index that nvidia-smi shows and that may change at a reboot, and ``uuid``, which does
not; what else identifies a GPU stands on ``trackside_gpu_info``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.collectors.base import NothingToCollect
from trackside_daemon.metric import Metric, Sample
from trackside_daemon.nvml.families import FAMILIES
from trackside_daemon.nvml.handle import NvmlAbsent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trackside_daemon.nvml.handle import Nvml
    from trackside_daemon.nvml.reading import GpuReading


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

    Attributes:
        gpus: As they were read last.
    """

    name = "gpu"
    metrics = (*(family.metric for family in FAMILIES.values()), INFO, DRIVER_INFO, VISIBLE)

    def __init__(self, nvml: Nvml, patience: float) -> None:
        self._nvml = nvml
        self._patience = patience
        self.gpus: Sequence[GpuReading] = ()

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
        self.gpus = reading.gpus
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
        Sample(FAMILIES[family].metric, (*identity, *labels), value)
        for family, labels, value in gpu.values
        if family in FAMILIES  # after an upgrade the worker may be newer than this process
    ]
    return [Sample(INFO, (*identity, *facts), 1), *values]
