"""The worker that reads the GPUs, and how many there are and should be: told also while it has no readings."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trackside_daemon.collectors.gpu.gpu_diagnosis import ailments
from trackside_daemon.model.metric import Metric, Sample, json_number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trackside_daemon.collectors.gpu.gpu import GpuCollector
    from trackside_daemon.nvml.handle.handle import Nvml

VISIBLE = Metric(
    "trackside_gpus_visible",
    "gauge",
    "GPUs that nvmlDeviceGetCount counts, 0 when NVML refuses or hangs, absent while nobody asks it, sampled by the "
    "daemon's tick.",
)
EXPECTED = Metric(
    "trackside_gpus_expected",
    "gauge",
    "GPUs that should be there: collector.gpu.expected, else the most that were seen since it began or since a pause, or "
    "are on the PCI bus without a driver other than NVIDIA's, where the daemon is in no container.",
)
PCI = Metric(
    "trackside_gpus_pci",
    "gauge",
    "NVIDIA GPUs of the whole machine, whatever a container was given, from /sys/bus/pci/devices.",
)
RESTARTS = Metric(
    "trackside_nvml_worker_restarts_total",
    "counter",
    "Times that the process which reads NVML was replaced, by reason.",
    ("reason",),
)
STUCK = Metric(
    "trackside_nvml_worker_stuck",
    "gauge",
    "1 while that process was told to end and does not, so that no other is started.",
)
CALLS = Metric(
    "trackside_nvml_calls_total",
    "counter",
    "Calls of NVML, by function and result; of simulated GPUs those that real ones would take.",
    ("function", "result"),
)
SECONDS = Metric(
    "trackside_nvml_call_seconds_total",
    "counter",
    "Time spent in calls of NVML; of simulated GPUs as real ones may take.",
    ("function",),
    "seconds",
)
REJECTED = Metric(
    "trackside_samples_rejected_total",
    "counter",
    "Values beyond what the family can be, which are not exported.",
    ("family",),
)

PARTS = ("KUBERNETES_SERVICE_HOST", "container", "APPTAINER_CONTAINER", "SINGULARITY_CONTAINER", "SLURM_JOB_ID")
CONTAINERS = (".dockerenv", "run/.containerenv", "run/systemd/container")
"""What engines leave in their containers."""

NVIDIA = "0x10de"
CLASSES = ("0x0302", "0x0300")
"""3D controller and VGA controller, without the programming interface."""


class NvmlCollector:
    """What is known without a reading; it never fails.

    Args:
        nvml: The handle.
        gpu: The collector that has just read it.
        expected: How many GPUs there should be; 0 for the most that were seen.
        sys: Where sysfs is mounted; None while GPUs are simulated, which no bus has.
        whole: All GPUs of the bus should be there, since nobody gives the daemon a part of them, as `is_part` says.
    """

    name = "nvml"
    metrics = (VISIBLE, EXPECTED, PCI, RESTARTS, STUCK, CALLS, SECONDS, REJECTED)

    def __init__(self, nvml: Nvml, gpu: GpuCollector, expected: int, sys: Path | None, *, whole: bool = False) -> None:
        self._nvml = nvml
        self._gpu = gpu
        self._expected = expected
        self._whole = whole
        self._devices = None if sys is None else sys / "bus" / "pci" / "devices"
        self._is_gpu: dict[str, bool] = {}

    def collect(self) -> list[Sample]:
        """Counts and counters; while the GPUs are not read, which of them are not up."""
        return [*self._counts(), *self._counters(), *self._gpu.held()]

    def counts(self) -> dict[str, int]:
        """GPUs by who counts them: ``visible``, ``expected`` and ``pci``; what is not known is left out."""
        seen = self._gpu.seen
        pci = self._on_the_bus()
        found = {"expected": self._expected or max(seen.most, self._ours())}
        if seen.visible is not None:
            found["visible"] = seen.visible
        return found if pci is None else {**found, "pci": pci}

    def status(self) -> dict[str, Any]:
        """What ``/api/v1/status`` says of GPUs and driver, ``up`` being None while nobody knows; for any thread."""
        seen, xids = self._gpu.seen, self._nvml.last.xids
        gpus = [
            {
                "index": gpu.index,
                "uuid": gpu.uuid,
                "name": gpu.info.get("name", ""),
                "up": ("up", (), 1.0) in gpu.values if gpu.values else None,
                "measured": sorted({family for family, _, _ in gpu.values}),
                "refused": gpu.unsupported,
                "ailments": [one._asdict() for one in ailments(gpu, xids.get(gpu.uuid, {}))],
            }
            for gpu in seen.gpus
        ]
        about = {"error": seen.error, "absent": seen.absent, "paused_until": until(self._nvml)}
        return {"gpus": gpus, "nvml": {**seen.driver, **self.counts(), **about}}

    def _counts(self) -> list[Sample]:
        metrics = {"visible": VISIBLE, "expected": EXPECTED, "pci": PCI}
        return [Sample(metrics[name], (), count) for name, count in self.counts().items()]

    def _counters(self) -> list[Sample]:
        reading = self._nvml.last
        return [
            Sample(STUCK, (), float(self._nvml.stuck)),
            *(Sample(RESTARTS, (reason,), times) for reason, times in self._nvml.restarts.items()),
            *(
                Sample(CALLS, (function, result), times)
                for function, results in reading.calls.items()
                for result, times in results.items()
            ),
            *(Sample(SECONDS, (function,), seconds) for function, seconds in reading.call_seconds.items()),
            *(Sample(REJECTED, (family,), times) for family, times in reading.rejected.items()),
        ]

    def _on_the_bus(self) -> int | None:
        """GPUs on the PCI bus; None where there is none to look at. A device is looked into once."""
        if self._devices is None:
            return None
        try:
            names = {entry.name for entry in self._devices.iterdir()}
        except OSError:
            return None
        known, devices = self._is_gpu, self._devices
        self._is_gpu = {name: known[name] if name in known else _is_nvidia_gpu(devices / name) for name in names}
        return sum(self._is_gpu.values())

    def _ours(self) -> int:
        """GPUs on the bus that are there for NVML, which may have none yet; 0 where that is not known."""
        if self._devices is None or not self._whole:
            return 0
        return sum(is_gpu and not _is_elsewhere(self._devices / name) for name, is_gpu in self._is_gpu.items())


def is_part(environ: Mapping[str, str] = os.environ, root: Path = Path("/")) -> bool:
    """Whether this process may have been given a part of the machine's GPUs: it is in a container, or a job of Slurm."""
    return any(name in environ for name in PARTS) or any((root / name).exists() for name in CONTAINERS)


def until(nvml: Nvml) -> float | str | None:
    """The end of a pause in Unix seconds, ``inf`` when it has none; None when there is no pause."""
    end = nvml.paused_until
    return None if end is None else json_number(end)


def _is_elsewhere(device: Path) -> bool:
    """Whether it has another driver, such as nouveau or that of a virtual machine."""
    try:
        return (device / "driver").readlink().name != "nvidia"
    except OSError:  # it has none
        return False


def _is_nvidia_gpu(device: Path) -> bool:
    try:
        vendor, kind = ((device / name).read_text(encoding="ascii").strip() for name in ("vendor", "class"))
    except OSError:  # it was pulled out just now
        return False
    return vendor == NVIDIA and kind.startswith(CLASSES)
