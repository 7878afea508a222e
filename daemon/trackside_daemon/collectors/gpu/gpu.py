"""NVIDIA GPUs: what the NVML worker reads, under the names that a query writes.

Every series carries ``gpu``, the index that nvidia-smi shows and that may change at a reboot, and ``uuid``, which does
not; what else identifies a GPU stands on ``trackside_gpu_info``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.collectors.base import NothingToCollect, StillBusy
from trackside_daemon.collectors.gpu.gpu_diagnosis import PAGING
from trackside_daemon.model.metric import Metric, Sample
from trackside_daemon.nvml.families import FAMILIES
from trackside_daemon.nvml.handle.handle import NvmlAbsent, NvmlDown, NvmlLocked, NvmlPaused, NvmlUnavailable
from trackside_daemon.nvml.reading import DOWN, GpuReading, Reading

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trackside_daemon.collectors.gpu.gpu_event_log import Chronicle
    from trackside_daemon.nvml.handle.handle import Nvml
    from trackside_daemon.nvml.reading import Value

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

_METRICS = {name: family.metric for name, family in FAMILIES.items()}
_XIDS, _XID_TIME = (_METRICS[name] for name in ("xid_errors_total", "xid_last_timestamp_seconds"))


class Seen(NamedTuple):
    """What the last tick saw; any thread may read it.

    Attributes:
        gpus: Those that were read, those that are lost, and those that are gone; one of which nothing is known now has
            no values.
        visible: How many of them NVML counts; 0 when it refuses or hangs, None while nobody knows.
        most: The most that it has counted, since the start or since the GPUs were last left alone.
        driver: The versions.
        error: Why there is no reading now; empty when there is one.
        absent: The error is that there is no driver or no GPU.
    """

    gpus: Sequence[GpuReading] = ()
    visible: int | None = None
    most: int = 0
    driver: Mapping[str, str] = {}
    error: str = "nothing was read yet"
    absent: bool = False


class GpuCollector:
    """Every reading of every GPU; what a card does not measure is left out.

    Args:
        nvml: The handle, closed by whoever made it.
        patience: Seconds to wait for a reading; it may be set while the collector runs.
        chronicle: Logs what befalls the GPUs; None to log nothing.

    Attributes:
        seen: What the last tick saw.
    """

    name = "gpu"
    metrics = (*_METRICS.values(), INFO, DRIVER_INFO)

    def __init__(self, nvml: Nvml, patience: float, chronicle: Chronicle | None = None) -> None:
        self.seen = Seen()
        self._nvml = nvml
        self.patience = patience
        self._forgetting = False
        self._chronicle = chronicle

    def collect(self) -> list[Sample]:
        """All GPUs of one reading, and of those that were seen before and are lost that they are.

        Raises:
            NothingToCollect: There is no NVIDIA driver or no GPU, or it is left alone.
            StillBusy: The worker is busy with what it was asked before.
            NvmlUnavailable: There is no reading this time.
        """
        if self._forgetting:
            self._forgetting, self.seen = False, Seen(error=self.seen.error)
            if self._chronicle is not None:
                self._chronicle.forget()
        skipped = self._nvml.skipped
        try:
            reading = self._nvml.read(self.patience)
        except NvmlUnavailable as error:
            self.seen = self._without(error)
            raise self._failure(error, busy=self._nvml.skipped > skipped) from error
        gpus, visible = (*reading.gpus, *reading.gone), len(reading.gpus)
        self.seen = Seen(gpus, visible, max(self.seen.most, visible), reading.driver, error="")
        if self._chronicle is not None:
            self._chronicle.tell(gpus, reading)
        samples = []
        if reading.driver:
            samples.append(Sample(DRIVER_INFO, tuple(reading.driver.get(label, "") for label in DRIVER_INFO.labels), 1))
        for gpu in gpus:
            samples += _samples(gpu)
        return [*samples, *_xids(gpus, reading)]

    def forget(self) -> None:
        """From now on other GPUs may be there on purpose; for any thread."""
        self._forgetting = True

    def held(self) -> list[Sample]:
        """What there is to say of the GPUs that were seen, while NVML does not answer, or there is no driver any more."""
        seen = self.seen
        if seen.visible or not seen.error or not seen.gpus:
            return []
        known = [sample for gpu in seen.gpus if gpu.values for sample in _samples(gpu)]
        return [*known, *_xids(seen.gpus, self._nvml.last)]

    def _without(self, error: NvmlUnavailable) -> Seen:
        seen, text = self.seen, str(error)
        if isinstance(error, NvmlPaused):
            return Seen(driver=seen.driver, error=text)
        if isinstance(error, NvmlLocked):
            return Seen(most=seen.most, driver=seen.driver, error=text)
        if isinstance(error, NvmlDown) or seen.visible == 0:
            return Seen(_all(seen.gpus, DOWN), 0, seen.most, seen.driver, text, isinstance(error, NvmlAbsent))
        if not seen.error:  # what was read last is still on the page
            return seen._replace(error=text)
        return seen._replace(gpus=_all(seen.gpus, []), visible=None, error=text)

    def _failure(self, error: NvmlUnavailable, *, busy: bool) -> Exception:
        if isinstance(error, NvmlPaused):
            return NothingToCollect(str(error))
        if isinstance(error, NvmlAbsent):
            remedy = "or switch the collector off with --no-collector.gpu"
            return NothingToCollect(f"NVML is not available: {error}, {remedy}")
        return StillBusy(str(error)) if busy else error


def patience(interval: float) -> float:
    """Seconds that a tick waits for the GPUs: the collectors after them wait too, and whoever stops the daemon."""
    return min(interval / 4, 2.0)


def _all(gpus: Sequence[GpuReading], values: list[Value]) -> list[GpuReading]:
    """With those values, but for those that were down already."""
    return [gpu if gpu.values == DOWN else GpuReading(gpu.index, gpu.uuid, gpu.info, values) for gpu in gpus]


def _samples(gpu: GpuReading) -> list[Sample]:
    identity = (str(gpu.index), gpu.uuid)
    facts = tuple(gpu.info.get(label, "") for label in INFO.labels[2:])
    values = [
        Sample(_METRICS[family], identity + labels, value)
        for family, labels, value in gpu.values
        if family in _METRICS  # after an upgrade the worker may be newer than this process
    ]
    return [Sample(INFO, (*identity, *facts), 1), *values]


def _xids(gpus: Sequence[GpuReading], reading: Reading) -> Iterator[Sample]:
    """The Xids of each GPU, also of one that is lost: its last Xid may say why."""
    indexes = {gpu.uuid: str(gpu.index) for gpu in gpus if gpu.uuid}
    unheard = {gpu.uuid for gpu in gpus if "xid" in gpu.unsupported}
    for uuid in {**indexes, **reading.xids}:
        identity = (indexes.get(uuid, ""), uuid)
        counted = reading.xids.get(uuid, {})
        for xid in {**({} if uuid in unheard else dict.fromkeys(PAGING)), **counted}:
            times, last = counted.get(xid, (0, 0.0))
            yield Sample(_XIDS, (*identity, str(xid)), times)
            if times:
                yield Sample(_XID_TIME, (*identity, str(xid)), last)
