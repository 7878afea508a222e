"""NVIDIA GPUs: what the NVML worker reads, under the names that a query writes.

Every series carries ``gpu``, the index that nvidia-smi shows and that may change at a reboot, and ``uuid``, which does
not; what else identifies a GPU stands on ``trackside_gpu_info``.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from trackside_daemon.collectors.base import NothingToCollect, StillBusy
from trackside_daemon.collectors.presence import Presence
from trackside_daemon.metric import Metric, Sample
from trackside_daemon.nvml.families import FAMILIES
from trackside_daemon.nvml.handle import NvmlAbsent, NvmlLate, NvmlPaused, NvmlUnavailable
from trackside_daemon.nvml.reading import PERMISSION, Reading

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trackside_daemon.nvml.handle import Nvml
    from trackside_daemon.nvml.reading import GpuReading

INFO = Metric(
    "trackside_gpu_info",
    "info",
    "What identifies a GPU, from nvmlDeviceGetName, nvmlDeviceGetPciInfo and their kind, sampled by the daemon's tick.",
    (
        *("gpu", "uuid", "name", "pci_bus_id", "serial", "vbios_version", "architecture", "compute_capability"),
        *("minor", "numa_node", "source"),
    ),
)
DRIVER_INFO = Metric(
    "trackside_nvidia_driver_info",
    "info",
    "Versions, from nvmlSystemGetDriverVersion, nvmlSystemGetNVMLVersion and nvmlSystemGetCudaDriverVersion, sampled by "
    "the daemon's tick.",
    ("driver_version", "nvml_version", "cuda_version"),
)

PAGING = (48, 62, 64, 74, 79, 94, 95, 119, 120)
"""Xids that somebody should be woken for. Their counters begin at 0: a first value of 1 is no increase (NVIDIA/NVSentinel#1196)."""

_XIDS, _XID_TIME = (FAMILIES[name].metric for name in ("xid_errors_total", "xid_last_timestamp_seconds"))

log = logging.getLogger("trackside")


class Seen(NamedTuple):
    """What the last tick saw; any thread may read it.

    Attributes:
        gpus: Those that were read, and those that should have been and have ``up`` 0.
        reading: The last one that there was, which the counters are told from; *current* says whether it is of now.
        error: Why there are no values; empty when there are.
        paused: The error is that somebody asked for it.
        absent: It is that there is no driver or no GPU.
        most: The most GPUs that NVML counted at once, since the start or the last pause.
    """

    gpus: Sequence[GpuReading] = ()
    reading: Reading = Reading()
    current: bool = False
    error: str = "nothing was read yet"
    paused: bool = False
    absent: bool = False
    most: int = 0


class GpuCollector:
    """Every reading of every GPU; what a card does not measure is left out.

    Args:
        nvml: The handle, closed by whoever made it.
        patience: Seconds to wait for a reading.

    Attributes:
        seen: What the last tick saw.
    """

    name = "gpu"
    metrics = (*(family.metric for family in FAMILIES.values()), INFO, DRIVER_INFO)

    def __init__(self, nvml: Nvml, patience: float) -> None:
        self.seen = Seen()
        self._nvml = nvml
        self._patience = patience
        self._presence = Presence()
        self._told: set[tuple[str, str]] = set()

    def collect(self) -> list[Sample]:
        """All GPUs of one reading, and of those that were seen before and are lost that they are.

        Raises:
            NothingToCollect: There is no NVIDIA driver or no GPU, or it is left alone.
            StillBusy: The worker has not answered yet.
            NvmlUnavailable: There is no reading this time.
        """
        try:
            reading = self._nvml.read(self._patience)
        except NvmlUnavailable as error:
            raise self._without(error) from error
        gpus = self._presence.complete(reading.gpus)
        self.seen = Seen(gpus, reading, current=True, error="", most=max(self.seen.most, len(reading.gpus)))
        self._tell_refusals(gpus)
        samples = []
        if reading.driver:
            samples.append(Sample(DRIVER_INFO, tuple(reading.driver.get(label, "") for label in DRIVER_INFO.labels), 1))
        for gpu in gpus:
            samples += _samples(gpu)
        return [*samples, *_xids(gpus, reading)]

    def _without(self, error: NvmlUnavailable) -> Exception:
        """Remembers that there is no reading, and why; returns what to raise."""
        seen, text = self.seen, str(error)
        if isinstance(error, NvmlLate):
            # What was read last is still on the page for one more tick, so it is still what is so.
            self.seen = seen._replace(current=seen.current and not seen.error, error=text)
            return StillBusy(text)
        if isinstance(error, NvmlPaused):
            self._presence = Presence()
            self.seen = Seen(reading=seen.reading, error=text, paused=True)
            return NothingToCollect(text)
        absent = isinstance(error, NvmlAbsent)
        self.seen = Seen(self._presence.complete([]), seen.reading, error=text, absent=absent, most=seen.most)
        if absent:
            remedy = "or switch the collector off with --no-collector.gpu"
            return NothingToCollect(f"NVML is not available: {text}, {remedy}")
        return error

    def _tell_refusals(self, gpus: Sequence[GpuReading]) -> None:
        """Log, once for each GPU and name, what whoever runs the daemon can cure."""
        for gpu in gpus:
            cures: dict[str, list[str]] = {}
            for name, why in gpu.refusals.items():
                if why.startswith(PERMISSION) and (gpu.uuid, name) not in self._told:
                    self._told.add((gpu.uuid, name))
                    cures.setdefault(why, []).append(name)
            for why, names in cures.items():
                log.warning("GPU %d (%s) refuses %s: %s", gpu.index, gpu.uuid, ", ".join(names), why)

    def held(self) -> list[Sample]:
        """What there is to say of the GPUs that were seen, while this host has no driver or no GPU any more."""
        seen = self.seen
        if not seen.absent:
            return []
        return [*(sample for gpu in seen.gpus for sample in _samples(gpu)), *_xids(seen.gpus, seen.reading)]

    def status(self) -> dict[str, Any]:
        """What ``/api/v1/status`` says of the GPUs and the driver; for any thread."""
        seen = self.seen
        return {
            "gpus": [
                {
                    "index": gpu.index,
                    "uuid": gpu.uuid,
                    "name": gpu.info.get("name", ""),
                    "up": seen.current and ("up", (), 1.0) in gpu.values,
                    "refused": gpu.refusals,
                }
                for gpu in seen.gpus
            ],
            "driver": seen.reading.driver,
            "error": seen.error,
            "absent": seen.absent,
        }


def _samples(gpu: GpuReading) -> list[Sample]:
    identity = (str(gpu.index), gpu.uuid)
    facts = tuple(gpu.info.get(label, "") for label in INFO.labels[2:])
    values = [
        Sample(FAMILIES[family].metric, (*identity, *labels), value)
        for family, labels, value in gpu.values
        if family in FAMILIES  # after an upgrade the worker may be newer than this process
    ]
    return [Sample(INFO, (*identity, *facts), 1), *values]


def _xids(gpus: Sequence[GpuReading], reading: Reading) -> Iterator[Sample]:
    """The Xids of each GPU, also of one that is lost: its last Xid may say why."""
    indexes = {gpu.uuid: str(gpu.index) for gpu in gpus if gpu.uuid}
    for uuid in {**indexes, **reading.xids}:
        identity = (indexes.get(uuid, ""), uuid)
        counted = reading.xids.get(uuid, {})
        for xid in {**dict.fromkeys(PAGING), **counted}:
            times, last = counted.get(xid, (0, 0.0))
            yield Sample(_XIDS, (*identity, str(xid)), times)
            if times:
                yield Sample(_XID_TIME, (*identity, str(xid)), last)
