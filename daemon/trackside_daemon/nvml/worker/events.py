"""Events from the driver: Xid errors, changes of MIG devices, and requests to unbind the driver.

Each of the two kinds of events has a thread that waits for it, in calls of a second.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import threading
import time
from typing import TYPE_CHECKING, Any

from trackside_daemon.model.backoff import Backoff
from trackside_daemon.nvml.readers.unsupported import PROBE_SECONDS, lasts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trackside_daemon.nvml.worker.library import CountedNvml

    Xids = dict[str, dict[int, tuple[int, float]]]

WAIT_MS = 1000  # after each wait, a thread checks whether it should continue
# A wait fails at once if a GPU of the set is lost, so retries need a back-off.
# Seconds after a first wait that failed, or after a GPU that could not be watched for a reason that may pass.
FIRST_BACKOFF = 1.0
MAX_BACKOFF = 60.0  # maximum of these seconds
LINGER_SECONDS = 5.0  # to watch the old GPUs after the set has changed: the Xid that explains a loss comes after it


class GpuEvents:
    """Xid errors and changes of MIG devices, from the first `watch` on.

    Args:
        nvml: The library.
        clock: Unix time, in seconds.
        monotonic: Monotonic clock in seconds.

    Attributes:
        unwatched: GPUs that report no events: the result by UUID, a word of `CountedNvml.result`.
    """

    def __init__(
        self,
        nvml: CountedNvml,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.unwatched: dict[str, str] = {}
        self._nvml = nvml
        self._clock = clock
        self._monotonic = monotonic
        self._retry_backoff = Backoff(FIRST_BACKOFF, MAX_BACKOFF)
        self._retry_at = math.inf
        self._lock = threading.Lock()
        self._xids: Xids = {}
        self._reconfigured: set[str] = set()
        self._gpus: dict[str, Any] = {}
        self._gpus_changed = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, gpus: Mapping[str, Any]) -> None:
        """Wait for events of these GPUs only, given as this cycle's handles by UUID.

        GPUs that refuse are retried after `PROBE_SECONDS`, or sooner if the reason may pass.
        """
        with self._lock:
            if gpus.keys() == self._gpus.keys() and self._monotonic() < self._retry_at:
                return
            self._gpus = dict(gpus)
            self._retry_at = math.inf
            self._gpus_changed.set()
            if gpus and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="gpu events", daemon=True)
                self._thread.start()

    def xids(self) -> Xids:
        """Return the number and last time of Xid errors by UUID and Xid; the UUID is empty if it is unknown."""
        with self._lock:
            return {uuid: dict(numbers) for uuid, numbers in self._xids.items()}

    def reconfigured(self, uuid: str) -> bool:
        """Return whether the GPU's MIG devices have changed since the last call."""
        with self._lock:
            changed = uuid in self._reconfigured
            self._reconfigured.discard(uuid)
        return changed

    def _run(self) -> None:
        while True:
            with self._lock:
                self._gpus_changed.clear()
                gpus = self._gpus
            self._watch(gpus)
            with self._lock:
                # Under the lock: either `watch` finds no thread and starts one, or this thread sees the change.
                if not self._gpus_changed.is_set():
                    self._thread = None
                    return

    def _watch(self, gpus: dict[str, Any]) -> None:
        """Wait for events until the set of GPUs changes; return at once if none of these can be watched."""
        nvml = self._nvml
        try:
            events = nvml.nvmlEventSetCreate()
        except nvml.NVMLError as error:
            self._set_unwatched(dict.fromkeys(gpus, nvml.result(error.value)))
            return
        uuids = self._register(events, gpus)
        if uuids:
            self._wait(events, uuids)
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlEventSetFree(events)

    def _register(self, events: Any, gpus: dict[str, Any]) -> dict[int | None, str]:
        """Register the GPUs; return the UUIDs of those that report events, by the address that NVML names them by."""
        nvml = self._nvml
        uuids, unwatched = {}, {}
        for uuid, handle in gpus.items():
            try:
                nvml.nvmlDeviceRegisterEvents(handle, self._event_types(handle), events)
                uuids[_address(handle)] = uuid
            except nvml.NVMLError as error:
                unwatched[uuid] = nvml.result(error.value)
        self._set_unwatched(unwatched)
        return uuids

    def _set_unwatched(self, unwatched: dict[str, str]) -> None:
        """Publish the GPUs that are not watched, and schedule a retry unless the set has changed meanwhile."""
        may_pass = not all(lasts(result) for result in unwatched.values())
        if not may_pass:
            self._retry_backoff.reset()
        delay = self._retry_backoff.next_delay() if may_pass else PROBE_SECONDS
        with self._lock:
            self.unwatched = unwatched
            if unwatched and not self._gpus_changed.is_set():
                self._retry_at = self._monotonic() + delay

    def _event_types(self, handle: Any) -> int:
        nvml = self._nvml
        supported: int = nvml.nvmlDeviceGetSupportedEventTypes(handle)
        if not supported & nvml.nvmlEventTypeXidCriticalError:
            raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
        wanted: int = nvml.nvmlEventTypeXidCriticalError | nvml.nvmlEventMigConfigChange
        return supported & wanted

    def _wait(self, events: Any, uuids: dict[int | None, str]) -> None:
        nvml = self._nvml
        backoff = Backoff(FIRST_BACKOFF, MAX_BACKOFF)
        leave_at = math.inf
        while self._monotonic() < leave_at:
            try:
                event = nvml.nvmlEventSetWait_v2(events, WAIT_MS)
            except nvml.NVMLError_Timeout:
                backoff.reset()
                if self._gpus_changed.is_set():
                    return
            except nvml.NVMLError:
                if self._gpus_changed.wait(backoff.next_delay()):
                    return
            else:
                backoff.reset()
                self._record(event, uuids.get(_address(event.device), ""))
            if self._gpus_changed.is_set():
                leave_at = min(leave_at, self._monotonic() + LINGER_SECONDS)

    def _record(self, event: Any, uuid: str) -> None:
        with self._lock:
            if event.eventType == self._nvml.nvmlEventTypeXidCriticalError:
                numbers = self._xids.setdefault(uuid, {})
                count, _ = numbers.get(event.eventData, (0, 0.0))
                numbers[event.eventData] = count + 1, self._clock()
            else:
                self._reconfigured.add(uuid)


class DriverUnbind:
    """Request to unbind the driver from a GPU, which waits until every process has closed the GPU.

    Drivers before 2025 do not report it.

    Attributes:
        requested: Set when the driver reports the request.
    """

    def __init__(self, nvml: CountedNvml) -> None:
        self.requested = threading.Event()
        self._nvml = nvml
        self._thread = threading.Thread(target=self._run, name="driver unbind", daemon=True)

    def start(self) -> None:
        """Start to wait for the request; NVML must be initialised."""
        self._thread.start()

    def _run(self) -> None:
        nvml = self._nvml
        with contextlib.suppress(nvml.NVMLError):
            events = nvml.nvmlSystemEventSetCreate(nvml.nvmlSystemEventSetCreateRequest_v1)
            nvml.nvmlSystemRegisterEvents(
                nvml.nvmlSystemRegisterEventRequest_v1, nvml.nvmlSystemEventTypeGpuDriverUnbind, events
            )
            buffer = (nvml.c_nvmlSystemEventData_v1_t * 1)()
            while not nvml.nvmlSystemEventSetWait(nvml.nvmlSystemEventSetWaitRequest_v1, events, WAIT_MS, buffer, 1):
                pass
            self.requested.set()


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
