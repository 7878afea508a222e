"""What the driver reports by itself: Xid errors, MIG devices made or destroyed, and that it is to be taken away.

Each of the two kinds of events has a thread that waits for it, in calls that last a second. They use a `Library` of their
own, since such a wait is nothing to count among the calls.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import threading
import time
from typing import TYPE_CHECKING, Any

from trackside_daemon.nvml.backoff import Backoff
from trackside_daemon.nvml.readers.unsupported import PROBE_SECONDS, lasts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trackside_daemon.nvml.worker.library import Library

    Xids = dict[str, dict[int, tuple[int, float]]]

WAIT_MS = 1000
BACKOFF_FIRST, BACKOFF_LAST = 1.0, 60.0
"""Seconds after a wait that failed, as it does at once when a GPU of the set is lost, and after a GPU that did not let
itself be watched for a reason that may pass."""

LINGER = 5.0
"""Seconds for which events that follow one another are heard before other GPUs are watched: the one that says why a GPU is
lost comes after the loss."""


class GpuEvents:
    """Xid errors, and changes of what MIG makes of a GPU; from `watch` on, nothing from before.

    Args:
        nvml: The library.
        clock: Unix seconds.
        monotonic: Seconds of a clock that only goes forward.

    Attributes:
        refused: Why a GPU tells none, in a word of `Library.result`, by UUID.
    """

    def __init__(
        self,
        nvml: Library,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.refused: dict[str, str] = {}
        self._nvml = nvml
        self._clock, self._monotonic = clock, monotonic
        self._patience = Backoff(BACKOFF_FIRST, BACKOFF_LAST)
        self._again_at = math.inf
        self._lock = threading.Lock()
        self._xids: Xids = {}
        self._reconfigured: set[str] = set()
        self._gpus: dict[str, Any] = {}
        self._others_wanted = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, gpus: Mapping[str, Any]) -> None:
        """Waits for events of these GPUs, given by UUID, and of no others; *gpus* are handles of this cycle.

        Those that refuse are asked again after a while: `PROBE_SECONDS`, or less where the reason may pass.
        """
        with self._lock:
            if gpus.keys() == self._gpus.keys() and self._monotonic() < self._again_at:
                return
            self._gpus, self._again_at = dict(gpus), math.inf
            self._others_wanted.set()
            if gpus and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="gpu events", daemon=True)
                self._thread.start()

    def xids(self) -> Xids:
        """By UUID and number, how many there were and when the last was; the UUID is empty where NVML did not say it."""
        with self._lock:
            return {uuid: dict(numbers) for uuid, numbers in self._xids.items()}

    def reconfigured(self, uuid: str) -> bool:
        """Whether the GPU's MIG devices changed since this was last asked."""
        with self._lock:
            changed = uuid in self._reconfigured
            self._reconfigured.discard(uuid)
        return changed

    def _run(self) -> None:
        while True:
            with self._lock:
                self._others_wanted.clear()
                gpus = self._gpus
            self._watch(gpus)
            with self._lock:
                if not self._others_wanted.is_set():
                    self._thread = None
                    return

    def _watch(self, gpus: dict[str, Any]) -> None:
        """Returns when other GPUs are wanted, or at once when none of these tells anything."""
        nvml = self._nvml
        try:
            events = nvml.nvmlEventSetCreate()
        except nvml.NVMLError as error:
            self._refuse(dict.fromkeys(gpus, nvml.result(error.value)))
            return
        uuids = self._register(events, gpus)
        if uuids:
            self._wait(events, uuids)
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlEventSetFree(events)

    def _register(self, events: Any, gpus: dict[str, Any]) -> dict[int | None, str]:
        """Those of *gpus* that tell events: their UUIDs, by the addresses that NVML names them by."""
        nvml = self._nvml
        uuids, refused = {}, {}
        for uuid, handle in gpus.items():
            try:
                nvml.nvmlDeviceRegisterEvents(handle, self._types(handle), events)
                uuids[_address(handle)] = uuid
            except nvml.NVMLError as error:
                refused[uuid] = nvml.result(error.value)
        self._refuse(refused)
        return uuids

    def _refuse(self, refused: dict[str, str]) -> None:
        """Says which GPUs are not watched, and when they are asked again, unless others are wanted by then."""
        passing = not all(lasts(result) for result in refused.values())
        if not passing:
            self._patience.reset()
        wait = self._patience.wait() if passing else PROBE_SECONDS
        with self._lock:
            self.refused = refused
            if refused and not self._others_wanted.is_set():
                self._again_at = self._monotonic() + wait

    def _types(self, handle: Any) -> int:
        nvml = self._nvml
        types: int = nvml.nvmlDeviceGetSupportedEventTypes(handle)
        if not types & nvml.nvmlEventTypeXidCriticalError:
            raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
        wanted: int = nvml.nvmlEventTypeXidCriticalError | nvml.nvmlEventMigConfigChange
        return types & wanted

    def _wait(self, events: Any, uuids: dict[int | None, str]) -> None:
        nvml = self._nvml
        pauses = Backoff(BACKOFF_FIRST, BACKOFF_LAST)
        leave_at = math.inf
        while self._monotonic() < leave_at:
            try:
                event = nvml.nvmlEventSetWait_v2(events, WAIT_MS)
            except nvml.NVMLError_Timeout:
                pauses.reset()
                if self._others_wanted.is_set():
                    return
            except nvml.NVMLError:
                if self._others_wanted.wait(pauses.wait()):
                    return
            else:
                pauses.reset()
                self._note(event, uuids.get(_address(event.device), ""))
            if self._others_wanted.is_set():
                leave_at = min(leave_at, self._monotonic() + LINGER)

    def _note(self, event: Any, uuid: str) -> None:
        with self._lock:
            if event.eventType == self._nvml.nvmlEventTypeXidCriticalError:
                numbers = self._xids.setdefault(uuid, {})
                count, _ = numbers.get(event.eventData, (0, 0.0))
                numbers[event.eventData] = count + 1, self._clock()
            else:
                self._reconfigured.add(uuid)


class DriverUnbind:
    """That somebody takes the driver away from a GPU, which waits until every process has let go of it.

    Drivers that do not tell it, as those before 2025, are waited for in vain.

    Attributes:
        told: Set when it is so.
    """

    def __init__(self, nvml: Library) -> None:
        self.told = threading.Event()
        self._nvml = nvml
        self._thread = threading.Thread(target=self._run, name="driver unbind", daemon=True)

    def start(self) -> None:
        """Begins to wait for it; NVML must be initialised."""
        self._thread.start()

    def _run(self) -> None:
        nvml = self._nvml
        with contextlib.suppress(nvml.NVMLError):
            events = nvml.nvmlSystemEventSetCreate(nvml.nvmlSystemEventSetCreateRequest_v1)
            nvml.nvmlSystemRegisterEvents(
                nvml.nvmlSystemRegisterEventRequest_v1, nvml.nvmlSystemEventTypeGpuDriverUnbind, events
            )
            place = (nvml.c_nvmlSystemEventData_v1_t * 1)()
            while not nvml.nvmlSystemEventSetWait(nvml.nvmlSystemEventSetWaitRequest_v1, events, WAIT_MS, place, 1):
                pass
            self.told.set()


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
