"""Turn the NVML worker's readings into samples of NVIDIA GPUs.

Every series has ``gpu``, the index of nvidia-smi, which may change at a reboot, and ``uuid``, which does not change.
``trackside_gpu_info`` has all other identification.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from trackside.log_once import LogOnce
from trackside_daemon.collectors.base import NothingToCollect, StillBusy
from trackside_daemon.model.families import gpu as gpu_families
from trackside_daemon.model.families import nvml as nvml_families
from trackside_daemon.model.metric import Sample
from trackside_daemon.nvml.handle.handle import (
    Nvml,
    NvmlAbsent,
    NvmlDown,
    NvmlLate,
    NvmlLocked,
    NvmlPaused,
    NvmlUnavailable,
)
from trackside_daemon.nvml.reading import DOWN, NO_PERMISSION, NOT_ANSWERING, GpuReading, Reading, Value

log = logging.getLogger("trackside")


class GpuEventLog:
    """A log of changes from reading to reading, each logged once."""

    def __init__(self) -> None:
        self._up: dict[str, bool] | None = None
        self._xids: dict[tuple[str, int], int] = {}
        self._refused = LogOnce()
        self._last: dict[tuple[int, str], dict[str, str]] = {}

    def forget(self) -> None:
        """Log all GPUs anew at the next reading, because others may be present now."""
        self._up = None

    def log_changes(self, gpus: Sequence[GpuReading], reading: Reading) -> None:
        """Log the changes since the last reading.

        Args:
            gpus: GPUs that were read, and GPUs that are gone.
            reading: Has the driver's version, the GPUs that this process may not open, and the counts of Xid errors
                since the daemon started.
        """
        # First, because an Xid often gives the reason for the loss that is logged after it.
        self._log_xids(gpus, reading)
        up = {gpu.uuid: gpu.values != DOWN for gpu in gpus}
        if self._up is None:
            _log_found(gpus, reading)
            # All of them, so that the loop below also logs a GPU that is lost from the start.
            self._up = dict.fromkeys(up, True)
        for gpu in gpus:
            if self._up.get(gpu.uuid, True) and not up[gpu.uuid]:
                why = gpu.unsupported.get("up", NOT_ANSWERING)
                log.warning("%s is lost: %s", _name(gpu), why)
            elif up[gpu.uuid] and not self._up.get(gpu.uuid, False):
                log.info("%s answers%s", _name(gpu), " again" if gpu.uuid in self._up else "")
        self._up |= up
        self._log_refusals([*gpus, *reading.hidden])

    def _log_refusals(self, gpus: Iterable[GpuReading]) -> None:
        """Log, once per GPU and value, refusals that you can remedy with permissions."""
        for gpu in gpus:
            if self._last.get((gpu.index, gpu.uuid)) == gpu.unsupported:
                continue
            self._last[gpu.index, gpu.uuid] = gpu.unsupported
            remedies: dict[str, list[str]] = {}
            for name, why in gpu.unsupported.items():
                key = (gpu.uuid or str(gpu.index), name)
                if why.startswith(NO_PERMISSION) and self._refused.first(key):
                    remedies.setdefault(why, []).append(name)
            for why, names in remedies.items():
                log.warning("%s refuses %s: %s", _name(gpu), ", ".join(names), why)

    def _log_xids(self, gpus: Iterable[GpuReading], reading: Reading) -> None:
        names = {gpu.uuid: _name(gpu) for gpu in gpus}
        for uuid, counted in reading.xids.items():
            for number, (times, _) in counted.items():
                if times > self._xids.get((uuid, number), 0):
                    log.warning("%s: Xid %d, %d since this daemon started", names.get(uuid, "a GPU"), number, times)
                self._xids[uuid, number] = times


def _log_found(gpus: Sequence[GpuReading], reading: Reading) -> None:
    kinds = Counter(gpu.info.get("name") or "unknown GPU" for gpu in gpus)
    summary = ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
    if any(gpu.info.get("source") == "simulated" for gpu in gpus):
        log.info("simulates %s, and reads no real GPU", summary)
    else:
        log.info("reads %s, driver %s", summary, reading.driver.get("driver_version") or "of unknown version")


def _name(gpu: GpuReading) -> str:
    return f"GPU {gpu.index} ({gpu.info.get('name') or 'unknown'}, {gpu.uuid or 'without a UUID'})"


_METRICS = {name: family.metric for name, family in gpu_families.FAMILIES.items()}


class GpuSnapshot(NamedTuple):
    """The GPUs as of the last tick; any thread may read it."""

    # GPUs that were read, that are lost and that are gone; a GPU in an unknown state has no values.
    gpus: Sequence[GpuReading] = ()
    # Number of GPUs that NVML counts; 0 when it refuses or hangs, None while that is unknown.
    visible: int | None = None
    most: int = 0  # largest number that it has counted, since the start or since the last pause
    driver: Mapping[str, str] = {}  # versions by label of `DRIVER_INFO`
    error: str = "nothing was read yet"  # the reason why there is no reading now; empty when there is one
    absent: bool = False  # the reason is that the host has no driver or no GPU


class GpuCollector:
    """All values of all GPUs; values that a card does not measure are left out.

    Args:
        nvml: The handle; the caller closes it.
        timeout: Seconds to wait for a reading; you may set it while the collector runs.
        event_log: Logs GPU events; None to log nothing.

    Attributes:
        snapshot: The GPUs as of the last tick.
    """

    name = "gpu"

    def __init__(self, nvml: Nvml, timeout: float, event_log: GpuEventLog | None = None) -> None:
        self.snapshot = GpuSnapshot()
        self._nvml = nvml
        self.timeout = timeout
        self._reset = False
        self._event_log = event_log

    def collect(self) -> list[Sample]:
        """Return the samples of one reading, with GPUs that were seen before and are lost now.

        Raises:
            NothingToCollect: The host has no NVIDIA driver or no GPU, or GPU access is paused.
            StillBusy: The worker is busy with an earlier request.
            NvmlUnavailable: There is no reading this time.
        """
        # Only this thread writes the snapshot, so `forget` leaves a mark for it instead of a lock.
        if self._reset:
            self._reset = False
            self.snapshot = GpuSnapshot(error=self.snapshot.error)
            if self._event_log is not None:
                self._event_log.forget()
        skipped = self._nvml.skipped
        try:
            reading = self._nvml.read(self.timeout)
        except NvmlUnavailable as error:
            self.snapshot = self._without(error)
            raise self._failure(error, busy=self._nvml.skipped > skipped) from error
        gpus = (*reading.gpus, *reading.gone)
        visible = len(reading.gpus)
        self.snapshot = GpuSnapshot(gpus, visible, max(self.snapshot.most, visible), reading.driver, error="")
        if self._event_log is not None:
            self._event_log.log_changes(gpus, reading)
        samples = []
        if reading.driver:
            samples.append(
                Sample(
                    nvml_families.DRIVER_INFO,
                    tuple(reading.driver.get(label, "") for label in nvml_families.DRIVER_INFO.labels),
                    1,
                )
            )
        for gpu in gpus:
            samples += _samples(gpu)
        return [*samples, *_xids(gpus, reading)]

    def forget(self) -> None:
        """Forget the GPUs seen so far, because others may now be present on purpose; any thread may call this."""
        self._reset = True

    def samples_without_reading(self) -> list[Sample]:
        """Return samples of the GPUs seen before, while NVML does not answer or the driver has gone; else none."""
        snapshot = self.snapshot
        if snapshot.visible or not snapshot.error or not snapshot.gpus:
            return []
        samples = [sample for gpu in snapshot.gpus if gpu.values for sample in _samples(gpu)]
        return [*samples, *_xids(snapshot.gpus, self._nvml.last)]

    def _without(self, error: NvmlUnavailable) -> GpuSnapshot:
        seen = self.snapshot
        text = str(error)
        if isinstance(error, NvmlPaused):
            # Without `most`: during a pause, GPUs may be removed on purpose.
            return GpuSnapshot(driver=seen.driver, error=text)
        if isinstance(error, NvmlLocked):
            # Another daemon reads the GPUs, so their state is unknown here, but not their number.
            return GpuSnapshot(most=seen.most, driver=seen.driver, error=text)
        if isinstance(error, NvmlDown) or seen.visible == 0:
            return GpuSnapshot(_all(seen.gpus, DOWN), 0, seen.most, seen.driver, text, isinstance(error, NvmlAbsent))
        if not seen.error:  # the last reading is still served
            return seen._replace(error=text)
        return seen._replace(gpus=_all(seen.gpus, []), visible=None, error=text)

    def _failure(self, error: NvmlUnavailable, *, busy: bool) -> Exception:
        if isinstance(error, NvmlPaused):
            return NothingToCollect(str(error))
        if isinstance(error, NvmlAbsent):
            remedy = "or switch the collector off with --no-collector.gpu"
            return NothingToCollect(f"NVML is not available: {error}, {remedy}")
        # On a busy host the first answers are late: no failure, unless the worker is then replaced.
        return StillBusy(str(error)) if busy or isinstance(error, NvmlLate) else error


def reading_timeout(interval: float) -> float:
    """Return the seconds that a tick waits for a reading; the collectors that follow and the daemon's stop wait too."""
    return min(interval / 4, 2.0)


def _all(gpus: Sequence[GpuReading], values: list[Value]) -> list[GpuReading]:
    """Return the GPUs with these values, except those that were down already."""
    return [gpu if gpu.values == DOWN else GpuReading(gpu.index, gpu.uuid, gpu.info, values) for gpu in gpus]


def _samples(gpu: GpuReading) -> list[Sample]:
    identity = (str(gpu.index), gpu.uuid)
    facts = tuple(gpu.info.get(label, "") for label in gpu_families.INFO.labels[2:])
    values = [
        Sample(_METRICS[family], identity + labels, value)
        for family, labels, value in gpu.values
        if family in _METRICS  # after an upgrade, the worker may be newer than this process
    ]
    return [Sample(gpu_families.INFO, (*identity, *facts), 1), *values]


def _xids(gpus: Sequence[GpuReading], reading: Reading) -> Iterator[Sample]:
    """Yield the Xid samples of each GPU, also of a lost one, whose last Xid may give the reason."""
    indexes = {gpu.uuid: str(gpu.index) for gpu in gpus if gpu.uuid}
    without_events = {gpu.uuid for gpu in gpus if "xid" in gpu.unsupported}
    for uuid in {**indexes, **reading.xids}:
        identity = (indexes.get(uuid, ""), uuid)
        counted = reading.xids.get(uuid, {})
        for xid in {**({} if uuid in without_events else dict.fromkeys(PAGING)), **counted}:
            times, last = counted.get(xid, (0, 0.0))
            yield Sample(gpu_families.XID_ERRORS, (*identity, str(xid)), times)
            if times:
                yield Sample(gpu_families.XID_LAST, (*identity, str(xid)), last)


# Their counters start at 0, because Prometheus sees no increase in a first value of 1 (NVIDIA/NVSentinel#1196).
PAGING = (48, 62, 64, 74, 79, 94, 95, 119, 120)  # xid errors that justify waking somebody

# Remedy by value of `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`.
ACTIONS = {
    1: "it needs a reset: run trackside pause-gpu, then nvidia-smi --gpu-reset",
    2: "it needs a reboot of the machine",
    3: "drain its peers",
    4: "drain its peers, then reset it",
    5: "restart the IMEX service",
    6: "reset its bus",
    7: "it needs a reboot of the whole system",
}

FLAGS = {
    "row_remap_pending": "a memory row is replaced at the next reset",
    "row_remap_failed": "a memory row could not be replaced: replace the GPU",
    "retired_pages_pending": "a memory page is retired at the next reset",
    "sram_threshold_exceeded": "its SRAM error count exceeds the threshold at which NVIDIA replaces the GPU",
}
SLOWDOWNS = ("hw_slowdown", "hw_thermal", "hw_power_brake", "sw_thermal")


class GpuFault(NamedTuple):
    """A fault in words; *grave* when it does not pass without intervention."""

    what: str
    grave: bool = True


def faults(gpu: GpuReading, xids: Mapping[int, tuple[int, float]]) -> list[GpuFault]:
    """Return the faults of a GPU, the grave ones first.

    Args:
        gpu: The last reading of the GPU.
        xids: Count and last Unix time of each Xid error since the daemon started.
    """
    values = {(family, labels): value for family, labels, value in gpu.values}
    return sorted((*_broken(values), *_errors(xids), *_slow(values)), key=lambda fault: not fault.grave)


def _broken(values: Mapping[tuple[str, tuple[str, ...]], float]) -> Iterator[GpuFault]:
    if action := ACTIONS.get(int(values.get(("recovery_action", ()), 0)), ""):
        yield GpuFault(action)
    yield from (GpuFault(words) for family, words in FLAGS.items() if values.get((family, ())))
    if lost := values.get(("ecc_volatile_errors_total", ("uncorrected",))):
        yield GpuFault(f"{lost:.0f} uncorrected ECC errors since the driver was loaded")
    if values.get(("fabric_healthy", ())) == 0:
        yield GpuFault("its part of the NVLink fabric is not healthy")
    links, up = (values.get((family, ()), 0.0) for family in ("nvlink_links", "nvlink_links_up"))
    if 0 < up < links:  # a card without a bridge has none up
        yield GpuFault(f"{up:.0f} of {links:.0f} NVLinks are up")


def _errors(xids: Mapping[int, tuple[int, float]]) -> Iterator[GpuFault]:
    for number, (times, _) in sorted(xids.items()):
        if number in PAGING:
            yield GpuFault(f"Xid {number}, {times} since the daemon started")


def _slow(values: Mapping[tuple[str, tuple[str, ...]], float]) -> Iterator[GpuFault]:
    active = [reason for reason in SLOWDOWNS if values.get(("clock_limit_active", (reason,)))]
    if active:
        yield GpuFault(f"its clocks are reduced by {', '.join(active)}", grave=False)
