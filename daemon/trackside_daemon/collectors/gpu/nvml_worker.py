"""Collect the numbers of GPUs present and expected, and the NVML worker's counters, also while there are no readings."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trackside_daemon.collectors.gpu.gpu import GpuCollector, faults
from trackside_daemon.model.families import nvml as nvml_families
from trackside_daemon.model.metric import Sample, json_number
from trackside_daemon.nvml.handle.handle import Nvml

# Variables that Kubernetes, systemd-nspawn and Podman (`container`), Apptainer, Singularity and Slurm set.
PARTIAL_VARIABLES = (
    "KUBERNETES_SERVICE_HOST",
    "container",
    "APPTAINER_CONTAINER",
    "SINGULARITY_CONTAINER",
    "SLURM_JOB_ID",
)
# Files that container engines create in their containers.
CONTAINER_FILES = (".dockerenv", "run/.containerenv", "run/systemd/container")

NVIDIA = "0x10de"
# PCI classes of a 3D controller and a VGA controller, without the programming interface.
CLASSES = ("0x0302", "0x0300")


class NvmlCollector:
    """Counts and counters that need no reading; this collector never fails.

    Args:
        nvml: The handle.
        gpu: The collector of GPU readings, which runs before this one.
        expected: Number of GPUs that should be present; 0 for the largest number seen.
        sys: Path of sysfs; None for simulated GPUs, which are on no bus.
        whole: All GPUs on the bus should be present, since the daemon sees the whole machine (see `sees_part`).
    """

    name = "nvml"

    def __init__(self, nvml: Nvml, gpu: GpuCollector, expected: int, sys: Path | None, *, whole: bool = False) -> None:
        self._nvml = nvml
        self._gpu = gpu
        self._expected = expected
        self._whole = whole
        self._devices = None if sys is None else sys / "bus" / "pci" / "devices"
        self._is_gpu: dict[str, bool] = {}

    def collect(self) -> list[Sample]:
        """Return the counts and counters, and the lost GPUs while there is no reading."""
        return [*self._counts(), *self._counters(), *self._gpu.samples_without_reading()]

    def counts(self) -> dict[str, int]:
        """Return the numbers of GPUs ``visible``, ``expected`` and ``pci``; unknown numbers are left out."""
        snapshot = self._gpu.snapshot
        pci = self._count_on_bus()
        counts = {"expected": self._expected or max(snapshot.most, self._count_for_nvml())}
        if snapshot.visible is not None:
            counts["visible"] = snapshot.visible
        return counts if pci is None else {**counts, "pci": pci}

    def status(self) -> dict[str, Any]:
        """Return the GPU part of ``/api/v1/status``; ``up`` is None while unknown. Any thread may call this."""
        snapshot = self._gpu.snapshot
        xids = self._nvml.last.xids
        gpus = [
            {
                "index": gpu.index,
                "uuid": gpu.uuid,
                "name": gpu.info.get("name", ""),
                "up": ("up", (), 1.0) in gpu.values if gpu.values else None,
                "measured": sorted({family for family, _, _ in gpu.values}),
                "refused": gpu.unsupported,
                "ailments": [fault._asdict() for fault in faults(gpu, xids.get(gpu.uuid, {}))],
            }
            for gpu in snapshot.gpus
        ]
        about = {"error": snapshot.error, "absent": snapshot.absent, "paused_until": paused_until(self._nvml)}
        return {"gpus": gpus, "nvml": {**snapshot.driver, **self.counts(), **about}}

    def _counts(self) -> list[Sample]:
        metrics = {"visible": nvml_families.VISIBLE, "expected": nvml_families.EXPECTED, "pci": nvml_families.PCI}
        return [Sample(metrics[name], (), count) for name, count in self.counts().items()]

    def _counters(self) -> list[Sample]:
        reading = self._nvml.last
        return [
            Sample(nvml_families.STUCK, (), float(self._nvml.stuck)),
            *(Sample(nvml_families.RESTARTS, (reason,), times) for reason, times in self._nvml.restarts.items()),
            *(
                Sample(nvml_families.CALLS, (function, result), times)
                for function, results in reading.calls.items()
                for result, times in results.items()
            ),
            *(
                Sample(nvml_families.CALL_SECONDS, (function,), seconds)
                for function, seconds in reading.call_seconds.items()
            ),
            *(Sample(nvml_families.REJECTED, (family,), times) for family, times in reading.rejected.items()),
        ]

    def _count_on_bus(self) -> int | None:
        """Return the number of GPUs on the PCI bus; None without a bus. The files of each device are read once."""
        if self._devices is None:
            return None
        try:
            names = {entry.name for entry in self._devices.iterdir()}
        except OSError:
            return None
        before = self._is_gpu
        devices = self._devices
        self._is_gpu = {name: before[name] if name in before else _is_nvidia_gpu(devices / name) for name in names}
        return sum(self._is_gpu.values())

    def _count_for_nvml(self) -> int:
        """Return the number of GPUs on the bus that no driver other than NVIDIA's uses; 0 where that is unknown."""
        if self._devices is None or not self._whole:
            return 0
        return sum(is_gpu and not _has_other_driver(self._devices / name) for name, is_gpu in self._is_gpu.items())


def sees_part(environ: Mapping[str, str] = os.environ, root: Path = Path("/")) -> bool:
    """Return whether this process may see only some of the machine's GPUs: in a container, or in a Slurm job."""
    return any(name in environ for name in PARTIAL_VARIABLES) or any((root / name).exists() for name in CONTAINER_FILES)


def paused_until(nvml: Nvml) -> float | str | None:
    """Return the end of a pause in Unix seconds, ``inf`` for a pause without end; None without a pause."""
    end = nvml.paused_until
    return None if end is None else json_number(end)


def _has_other_driver(device: Path) -> bool:
    """Return whether a device has a driver other than NVIDIA's, such as nouveau or vfio-pci."""
    try:
        return (device / "driver").readlink().name != "nvidia"
    except OSError:  # it has no driver
        return False


def _is_nvidia_gpu(device: Path) -> bool:
    try:
        vendor = (device / "vendor").read_text(encoding="ascii").strip()
        kind = (device / "class").read_text(encoding="ascii").strip()
    except OSError:  # it was removed just now
        return False
    return vendor == NVIDIA and kind.startswith(CLASSES)
