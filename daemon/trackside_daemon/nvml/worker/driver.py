"""Readings of the NVIDIA driver, through the ``pynvml`` module that the worker imports."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from trackside_daemon.model.families.gpu import FAMILIES
from trackside_daemon.nvml.reader_groups import GROUPS, selected_groups
from trackside_daemon.nvml.readers.identity import identity, text_or_empty
from trackside_daemon.nvml.readers.unsupported import Unsupported, lasts
from trackside_daemon.nvml.reading import DOWN, NO_PERMISSION, NOT_ANSWERING, GpuReading, Reading
from trackside_daemon.nvml.worker.events import DriverUnbind, GpuEvents
from trackside_daemon.nvml.worker.library import CountedNvml

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from trackside_daemon.nvml.reader_groups import ReaderGroup
    from trackside_daemon.nvml.reading import Value


class Gpu:
    """Readers of a GPU, and the record of what it does not support.

    Args:
        uuid: UUID from NVML.
        info: Labels of ``trackside_gpu_info``.
        groups: Reader groups to read.
        clock: Monotonic clock in seconds.

    Attributes:
        rejected: Number of values out of bounds, by family.
        seconds: Duration of each reader in the last cycle.
    """

    def __init__(
        self,
        uuid: str,
        info: dict[str, str],
        groups: Mapping[str, ReaderGroup],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.uuid = uuid
        self.info = info
        self.unsupported = Unsupported()
        self.rejected: dict[str, int] = {}
        self.seconds: dict[str, float] = {}
        self._clock = clock
        self._readers = {name: (group.new_reader(), group.every) for name, group in groups.items()}
        self._cached: dict[str, tuple[float, list[Value]]] = {}
        self._generation = 0
        self._has_answered = False
        self._unknown_error: Exception | None = None

    def read(self, nvml: CountedNvml, handle: Any) -> list[Value]:
        """Return every value that it measures; a refused call costs only its own families.

        If two readers measure the same series, the first one counts.

        Raises:
            NVMLError_GpuIsLost: The GPU fell off the bus.
            NVMLError_Unknown: No call succeeded, and at least one failed with this error.
        """
        if self._generation != self.unsupported.generation:
            self._generation = self.unsupported.generation
            self._cached.clear()
        self.seconds = {}
        self._has_answered = False
        self._unknown_error = None
        values: dict[tuple[str, tuple[str, ...]], Value] = {}
        try:
            for name in self._readers:
                for value in self._read_supported(name, nvml, handle):
                    values.setdefault(value[:2], value)
            if self._unknown_error and not self._has_answered:
                raise self._unknown_error
        except nvml.NVMLError:
            self._cached.clear()
            raise
        return list(values.values())

    def _read_supported(self, name: str, nvml: CountedNvml, handle: Any) -> list[Value]:
        """Return the values of a reader; none if it is not supported.

        Raises:
            NVMLError_GpuIsLost: The GPU fell off the bus.
        """
        if name in self.unsupported:
            self._cached.pop(name, None)
            return []
        try:
            return self._read_due(name, nvml, handle)
        except nvml.NVMLError_GpuIsLost:
            raise
        except nvml.NVMLError as error:
            self.unsupported.add(name, nvml.result(error.value))
            if error.value == nvml.NVML_ERROR_UNKNOWN:
                self._unknown_error = error
        # An answer of a newer driver may break a reader in an unforeseen way; the other readers and GPUs continue.
        except Exception as error:  # noqa: BLE001
            self.unsupported.add(name, f"it failed: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
        return []

    def _read_due(self, name: str, nvml: CountedNvml, handle: Any) -> list[Value]:
        """Return the values of a reader; between two reads of a slow one, its last values."""
        reader, every = self._readers[name]
        start = self._clock()
        due, values = self._cached.get(name, (start, []))
        if start < due:
            return values
        try:
            values = [value for value in reader(nvml, handle, self.unsupported) if self._is_plausible(value)]
        finally:
            self.seconds[name] = self._clock() - start
        self._has_answered = self._has_answered or bool(values)
        if every:
            self._cached[name] = start + every, values
        return values

    def _is_plausible(self, value: Value) -> bool:
        family = FAMILIES[value[0]]
        if family.low <= value[2] <= family.high:
            return True
        self.rejected[family.metric.name] = self.rejected.get(family.metric.name, 0) + 1
        return False


MAX_SLOW_CYCLES = 3  # number of successive cycles longer than the interval after which a reader is skipped

# The reader of MIG is not optional: without it the other readers would describe another layout of the GPU.
OPTIONAL = {name for name, group in GROUPS.items() if group.extra} | {
    "processes",
    "process-utilization",
    "row-remap-banks",
}


class CycleBudget:
    """Count of successive cycles that took longer than the interval."""

    def __init__(self) -> None:
        self._slow_cycles = 0

    def record_cycle(self, seconds: float, interval: float, gpus: Collection[Gpu]) -> None:
        """Record the duration of a cycle; after too many slow ones, skip the most expensive optional reader.

        Args:
            seconds: Duration of the cycle.
            interval: Seconds between the starts of two cycles.
            gpus: GPUs read in the cycle.
        """
        self._slow_cycles = self._slow_cycles + 1 if seconds > interval else 0
        if self._slow_cycles < MAX_SLOW_CYCLES:
            return
        self._slow_cycles = 0
        costs = {name: sum(gpu.seconds.get(name, 0.0) for gpu in gpus) for name in OPTIONAL}
        costliest = max(costs, key=lambda name: costs[name])
        if not costs[costliest]:
            return
        why = f"it took {costs[costliest]:.2f} s of a cycle that is longer than the interval"
        for gpu in gpus:
            # Until `PROBE_SECONDS` are over, after which the reader is tried again.
            gpu.unsupported.add(costliest, why)


QUARANTINED = "a worker hung at it, so it is skipped for a while"
NO_UUID = "the driver does not report its UUID; see dmesg for NVRM and Xid"  # reasons why a GPU is down

HIDDEN = f"{NO_PERMISSION} to open it, for example in a container that may not use it; it is left out"

UNBINDING = "the NVIDIA driver is about to be unbound from a GPU; the worker releases all GPUs so that it can be"


class Driver:
    """NVML, from its first call on.

    Args:
        pynvml: The module.
        groups: Reader groups to read of each GPU; None for the default ones.
        report_gpu: Receives the index of a GPU before its first call, so that a hang can be attributed.
        clock: Monotonic clock in seconds.
    """

    def __init__(
        self,
        pynvml: Any,
        groups: Mapping[str, ReaderGroup] | None = None,
        report_gpu: Callable[[int], None] = lambda _: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._nvml = CountedNvml(pynvml)
        self._groups = selected_groups() if groups is None else groups
        self._report_gpu = report_gpu
        self._budget = CycleBudget()
        self._clock = clock
        self._versions: dict[str, str] | None = None
        self._gpus: dict[str, Gpu] = {}
        self._uuid_at: dict[int, str] = {}
        self._handles: dict[str, Any] = {}
        # Libraries of their own, because waits for events should not count among the calls.
        self._events = GpuEvents(CountedNvml(pynvml))
        self._unbind = DriverUnbind(CountedNvml(pynvml))

    def read(self, quarantined: Collection[int] = (), interval: float = math.inf) -> Reading:
        """Read every GPU that NVML counts. The first call initialises NVML, which may take seconds.

        Args:
            quarantined: Indexes of GPUs to skip, because an earlier worker hung there.
            interval: Seconds in which the cycle should end; if cycles take longer, optional readers are skipped.
        """
        nvml = self._nvml
        if self._unbind.requested.is_set():
            return Reading(error=UNBINDING, reason="gpu_unbind")
        try:
            count = self._count_gpus()
        except nvml.NVMLError as error:
            return self._error_reading(error)
        if not count:
            missing = "NVML sees no GPU: check lspci, or the container's access to GPUs"
            return Reading(error=missing, absent=True, reason="no_gpu")
        gpus, hidden = self._read_gpus(count, quarantined, interval)
        if not gpus:
            return self._error_reading(nvml.NVMLError(nvml.NVML_ERROR_NO_PERMISSION))
        return Reading(
            gpus,
            self._versions or {},
            calls=nvml.calls,
            call_seconds=nvml.seconds,
            rejected=self._rejected(),
            xids=self._events.xids(),
            hidden=hidden,
        )

    def _count_gpus(self) -> int:
        if self._versions is None:
            self._nvml.nvmlInit()
            self._versions = self._read_versions()
            self._unbind.start()
        count: int = self._nvml.nvmlDeviceGetCount()
        return count

    def _read_gpus(
        self, count: int, quarantined: Collection[int], interval: float
    ) -> tuple[list[GpuReading], list[GpuReading]]:
        """Return the GPUs that NVML counts, and those of them that this process may not open, as in a container."""
        start = self._clock()
        self._handles = {}
        gpus, hidden = [], []
        for index in range(count):
            try:
                gpus.append(self._down(index, QUARANTINED) if index in quarantined else self._read_gpu(index))
            except self._nvml.NVMLError_NoPermission:
                hidden.append(GpuReading(index, "", {}, [], {"nvmlDeviceGetHandleByIndex": HIDDEN}))
        self._budget.record_cycle(self._clock() - start, interval, [self._gpus[uuid] for uuid in self._handles])
        self._events.watch(self._handles)
        return gpus, hidden

    def _read_gpu(self, index: int) -> GpuReading:
        """Read a GPU; one that is lost is down.

        Raises:
            NVMLError_NoPermission: This process may not open it.
        """
        self._report_gpu(index)
        try:
            # Each cycle fetches the handle: after a loss an old one is undefined, and the index of a GPU can change.
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = text_or_empty(self._nvml, lambda: self._nvml.nvmlDeviceGetUUID(handle))
            if not uuid:
                return self._down(index, NO_UUID)
            gpu = self._gpu(uuid, handle)
            self._uuid_at[index] = uuid
            self._apply_events(gpu)
            values = [("up", (), 1.0), *gpu.read(self._nvml, handle)]
        except self._nvml.NVMLError_NoPermission:
            raise
        except self._nvml.NVMLError as error:
            return self._down(index, f"{self._nvml.result(error.value)}: {NOT_ANSWERING}")
        self._handles[uuid] = handle
        return GpuReading(index, uuid, gpu.info, values, gpu.unsupported.reasons())

    def _gpu(self, uuid: str, handle: Any) -> Gpu:
        gpu = self._gpus.get(uuid)
        if gpu is None:
            gpu = self._gpus[uuid] = Gpu(uuid, identity(self._nvml, handle), self._groups, self._clock)
        elif not gpu.info["name"]:  # the driver was not ready to report it
            gpu.info = identity(self._nvml, handle)
        return gpu

    def _apply_events(self, gpu: Gpu) -> None:
        if self._events.reconfigured(gpu.uuid):
            gpu.unsupported.clear()
        result = self._events.unwatched.get(gpu.uuid)
        if result is None:
            gpu.unsupported.remove("xid")
        else:
            temporary = f"the driver returned {result} to the request for events; the worker retries"
            gpu.unsupported.add("xid", result if lasts(result) else temporary)

    def _down(self, index: int, why: str) -> GpuReading:
        gpu = self._gpus.get(self._uuid_at.get(index, ""))
        if gpu is None:
            return GpuReading(index, "", {}, DOWN, {"up": why})
        gpu.unsupported.clear()  # a GPU that returns has been reset
        return GpuReading(index, gpu.uuid, gpu.info, DOWN, {"up": why})

    def _rejected(self) -> dict[str, int]:
        rejected: dict[str, int] = {}
        for gpu in self._gpus.values():
            for family, times in gpu.rejected.items():
                rejected[family] = rejected.get(family, 0) + times
        return rejected

    def _read_versions(self) -> dict[str, str]:
        nvml = self._nvml
        # nvmlSystemGetCudaDriverVersion_v2 would load libcuda.
        return {
            "driver_version": text_or_empty(nvml, nvml.nvmlSystemGetDriverVersion),
            "nvml_version": text_or_empty(nvml, nvml.nvmlSystemGetNVMLVersion),
            "cuda_version": text_or_empty(nvml, lambda: _cuda_version(nvml.nvmlSystemGetCudaDriverVersion())),
        }

    def _error_reading(self, error: Any) -> Reading:
        nvml = self._nvml
        if error.value == nvml.NVML_ERROR_LIBRARY_NOT_FOUND:
            return Reading(
                error="libnvidia-ml.so.1 not found; install the NVIDIA driver", absent=True, reason="no_driver"
            )
        if error.value == nvml.NVML_ERROR_DRIVER_NOT_LOADED:
            return Reading(
                error="the NVIDIA kernel module is not loaded; run modprobe nvidia, or reboot",
                absent=True,
                reason="no_driver",
            )
        remedy = {
            nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "the driver was upgraded under a running kernel module; reboot",
            nvml.NVML_ERROR_NO_PERMISSION: "give the daemon's user read and write access to /dev/nvidia*",
        }.get(error.value, "check nvidia-smi, and dmesg for NVRM and Xid")
        reason = nvml.result(error.value)
        return Reading(error=f"NVML returned error {error.value} ({error}); {remedy}", reason=reason)


def _cuda_version(number: int) -> str:
    """Format 13010 as ``13.1``."""
    return f"{number // 1000}.{number % 1000 // 10}"
