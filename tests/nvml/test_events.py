"""Events of the driver: Xid errors and MIG changes."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Any

import pynvml
import pytest
from nvml.answers import target
from processes import DEADLINE

from trackside_daemon.nvml.readers.unsupported import PROBE_SECONDS
from trackside_daemon.nvml.worker.driver import Driver
from trackside_daemon.nvml.worker.events import LINGER_SECONDS, MAX_BACKOFF, GpuEvents
from trackside_daemon.nvml.worker.library import CountedNvml

if TYPE_CHECKING:
    from collections.abc import Iterator

SUCCESS, NOT_SUPPORTED, TIMEOUT, GPU_IS_LOST, UNKNOWN = 0, 3, 10, 15, 999
XID, MIG_CHANGE, CLOCK = 0x8, 0x100, 0x10
NOON = 1_700_000_000.0


class Reports:
    """Events of the driver: a wait lasts until the test ends it.

    Attributes:
        registered: By set, the GPUs and the types.
        open: Sets that are not freed.
    """

    def __init__(self, library: Any) -> None:
        self.types = XID | MIG_CHANGE | CLOCK
        self.registered: dict[int, list[tuple[int, int]]] = {}
        self.open: list[int] = []
        self._ends: queue.Queue[int | tuple[int, int, int]] = queue.Queue()
        self._waits = threading.Semaphore(0)
        library.functions |= {
            "nvmlEventSetCreate": self.create,
            "nvmlEventSetFree": self.free,
            "nvmlDeviceGetSupportedEventTypes": self.supported,
            "nvmlDeviceRegisterEvents": self.register,
            "nvmlEventSetWait_v2": self.wait,
        }

    def create(self, *call: Any) -> None:
        pynvml.cast(call[-1], pynvml.POINTER(pynvml.c_void_p))[0] = len(self.registered) + 1
        self.open.append(len(self.registered) + 1)
        self.registered[self.open[-1]] = []

    def free(self, *call: Any) -> None:
        self.open.remove(address(call[-1]))

    def supported(self, *call: Any) -> None:
        target(call[-1]).value = self.types

    def register(self, *call: Any) -> None:
        *_, handle, types, events = call
        self.registered[address(events)].append((address(handle) - 1, types.value))

    def wait(self, *call: Any) -> int:
        *_, out, _ = call
        self._waits.release()
        end = self._ends.get()
        if isinstance(end, int):
            return end
        gpu, kind, number = end
        target(out).device = pynvml.cast(gpu + 1, pynvml.c_nvmlDevice_t)
        target(out).eventType, target(out).eventData = kind, number
        return SUCCESS

    def awaited(self) -> None:
        """Return when a thread waits."""
        assert self._waits.acquire(timeout=DEADLINE)

    def end(self, *ends: int | tuple[int, int, int]) -> None:
        """End a wait with a status or an event of a GPU; return when the next wait has begun."""
        for end in ends:
            self._ends.put(end)
            self.awaited()

    def last(self, end: int) -> None:
        """End the last wait."""
        self._ends.put(end)


def address(handle: Any) -> int:
    return pynvml.cast(handle, pynvml.c_void_p).value or 0


def handles(*indexes: int) -> dict[str, Any]:
    return {f"GPU-{index}": pynvml.nvmlDeviceGetHandleByIndex(index) for index in indexes}


@pytest.fixture
def reports(library: Any) -> Reports:
    return Reports(library)


@pytest.fixture
def events(reports: Reports) -> Iterator[GpuEvents]:
    times = iter(range(1000))
    events = GpuEvents(CountedNvml(pynvml), lambda: NOON + next(times))
    yield events
    finish(events, reports)


class Seconds:
    """Clock that the test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def retried(reports: Reports) -> Iterator[tuple[GpuEvents, Seconds]]:
    """Events, and the clock of the retries."""
    seconds = Seconds()
    events = GpuEvents(CountedNvml(pynvml), monotonic=seconds)
    yield events, seconds
    finish(events, reports)


@pytest.fixture
def driver(library: Any, reports: Reports) -> Iterator[Driver]:
    driver = Driver(pynvml)
    yield driver
    finish(driver._events, reports)


def finish(events: GpuEvents, reports: Reports) -> None:
    running = threads()
    events.watch({})
    if running:
        reports.last(TIMEOUT)
        ended()
    assert reports.open == []


def threads() -> list[threading.Thread]:
    """Return the thread that waits for events, if there is one."""
    return [thread for thread in threading.enumerate() if thread.name == "gpu events"]


def ended() -> None:
    """Return when the thread has ended."""
    for thread in threads():
        thread.join(DEADLINE)
    assert threads() == []


def test_each_gpu_is_registered_for_xid_errors_and_mig_changes(events: GpuEvents, reports: Reports) -> None:
    events.watch(handles(0, 1))
    reports.awaited()
    assert reports.registered == {1: [(0, XID | MIG_CHANGE), (1, XID | MIG_CHANGE)]}


def test_xid_errors_are_counted_by_gpu_and_number_with_the_time_of_the_last(
    events: GpuEvents, reports: Reports
) -> None:
    events.watch(handles(0, 1))
    reports.awaited()
    reports.end((0, XID, 79), (1, XID, 31), TIMEOUT, (0, XID, 79), (0, XID, 63))
    assert events.xids() == {"GPU-0": {79: (2, NOON + 2), 63: (1, NOON + 3)}, "GPU-1": {31: (1, NOON + 1)}}


def test_an_error_of_a_gpu_that_nvml_does_not_name_is_counted_without_a_uuid(
    events: GpuEvents, reports: Reports
) -> None:
    events.watch(handles(0))
    reports.awaited()
    reports.end((7, XID, 79))
    assert events.xids() == {"": {79: (1, NOON)}}


def test_a_change_of_mig_devices_is_reported_once(events: GpuEvents, reports: Reports) -> None:
    events.watch(handles(0, 1))
    reports.awaited()
    reports.end((1, MIG_CHANGE, 0))
    assert [events.reconfigured(uuid) for uuid in ("GPU-0", "GPU-1", "GPU-1")] == [False, True, False]
    assert events.xids() == {}


def test_the_same_gpus_are_registered_once(events: GpuEvents, reports: Reports) -> None:
    events.watch(handles(0, 1))
    reports.awaited()
    events.watch(handles(0, 1))
    reports.end(TIMEOUT)
    assert len(reports.registered) == 1


def test_other_gpus_are_registered_anew_and_counts_stay(events: GpuEvents, reports: Reports) -> None:
    events.watch(handles(0))
    reports.awaited()
    reports.end((0, XID, 79))
    events.watch(handles(0, 1))
    reports.end((0, XID, 79), TIMEOUT)
    assert [gpu for gpu, _ in reports.registered[2]] == [0, 1]
    assert reports.open == [2]
    reports.end((1, XID, 79))
    assert {uuid: numbers[79][0] for uuid, numbers in events.xids().items()} == {"GPU-0": 2, "GPU-1": 1}


class Pauses(threading.Event):
    """Event that records the timeouts of its waits, and returns at once."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds.append(timeout)
        return self.is_set()


@pytest.mark.parametrize("status", [GPU_IS_LOST, UNKNOWN])
def test_a_wait_that_fails_at_once_is_repeated_more_and_more_seldom(
    events: GpuEvents, reports: Reports, status: int
) -> None:
    pauses = events._gpus_changed = Pauses()
    events.watch(handles(0))
    reports.awaited()
    reports.end(*[status] * 8)
    assert pauses.seconds == [1, 2, 4, 8, 16, 32, MAX_BACKOFF, MAX_BACKOFF]
    reports.end(TIMEOUT, status)
    assert pauses.seconds[-1] == 1


def test_a_lost_gpu_is_left_out_as_soon_as_that_is_wanted(events: GpuEvents, reports: Reports) -> None:
    events.watch(handles(0, 1))
    reports.awaited()
    events.watch(handles(1))
    reports.end(GPU_IS_LOST)
    assert [gpu for gpu, _ in reports.registered[2]] == [1]


def test_without_events_the_thread_ends_and_has_a_reason(library: Any, events: GpuEvents) -> None:
    library.missing.add("nvmlEventSetCreate")
    events.watch(handles(0, 1))
    ended()
    assert events.unwatched == {"GPU-0": "function_not_found", "GPU-1": "function_not_found"}


def test_when_no_gpu_reports_xid_errors_the_thread_ends(events: GpuEvents, reports: Reports) -> None:
    reports.types = CLOCK
    events.watch(handles(0))
    ended()
    assert events.unwatched == {"GPU-0": "not_supported"}
    assert reports.registered == {1: []}


def test_after_the_thread_has_ended_another_gpu_is_watched(events: GpuEvents, reports: Reports) -> None:
    reports.types = 0
    events.watch(handles(0))
    ended()
    reports.types = XID
    events.watch(handles(0, 1))
    reports.awaited()
    assert events.unwatched == {}


def test_a_gpu_without_events_does_not_prevent_those_of_the_others(
    library: Any, events: GpuEvents, reports: Reports
) -> None:
    library.status["nvmlDeviceRegisterEvents", 0] = NOT_SUPPORTED
    events.watch(handles(0, 1))
    reports.awaited()
    reports.end((1, XID, 48))
    assert events.unwatched == {"GPU-0": "not_supported"}
    assert list(events.xids()) == ["GPU-1"]


def test_a_reading_has_the_counts_since_the_worker_began(driver: Driver, reports: Reports) -> None:
    assert driver.read().xids == {}
    reports.awaited()
    reports.end((1, XID, 79))
    first, second = driver.read(), driver.read()
    assert first.xids == second.xids
    assert first.xids["GPU-1"][79][0] == 1


def test_waits_are_not_among_the_calls(driver: Driver, reports: Reports) -> None:
    driver.read()
    reports.awaited()
    reports.end(TIMEOUT)
    assert "nvmlEventSetWait_v2" not in driver.read().calls


def test_a_gpu_that_reports_no_xid_errors_has_a_reason(driver: Driver, reports: Reports) -> None:
    reports.types = 0
    driver.read()
    ended()
    assert "does not support" in driver.read().gpus[0].unsupported["xid"]


def test_a_gpu_with_changed_mig_devices_is_read_anew(library: Any, driver: Driver, reports: Reports) -> None:
    library.status["nvmlDeviceGetPowerUsage"] = NOT_SUPPORTED
    driver.read()
    reports.awaited()
    del library.status["nvmlDeviceGetPowerUsage"]
    reports.end((1, MIG_CHANGE, 0))
    first, second = driver.read().gpus
    assert "power" in first.unsupported
    assert "power" not in second.unsupported


def test_a_gpu_that_cannot_be_watched_now_is_retried_more_and_more_seldom(
    library: Any, reports: Reports, retried: tuple[GpuEvents, Seconds]
) -> None:
    events, seconds = retried
    library.status["nvmlEventSetCreate"] = UNKNOWN
    for wait in (1, 2, 4, 8, 16, 32, 60, 60):
        events.watch(handles(0))
        ended()
        assert events.unwatched == {"GPU-0": "unknown"}
        seconds.now += wait - 0.5
        events.watch(handles(0))
        assert threads() == []
        seconds.now += 0.5
    del library.status["nvmlEventSetCreate"]
    events.watch(handles(0))
    reports.awaited()
    assert events.unwatched == {}
    assert [gpu for gpu, _ in reports.registered[1]] == [0]


def test_a_gpu_that_reports_no_events_is_retried_after_a_while(
    reports: Reports, retried: tuple[GpuEvents, Seconds]
) -> None:
    events, seconds = retried
    reports.types = CLOCK
    events.watch(handles(0))
    ended()
    reports.types = XID
    seconds.now += PROBE_SECONDS - 1
    events.watch(handles(0))
    assert threads() == []
    seconds.now += 1
    events.watch(handles(0))
    reports.awaited()
    assert events.unwatched == {}


def test_a_gpu_that_cannot_be_watched_now_is_added_later(
    library: Any, reports: Reports, retried: tuple[GpuEvents, Seconds]
) -> None:
    events, seconds = retried
    library.status["nvmlDeviceRegisterEvents", 0] = UNKNOWN
    events.watch(handles(0, 1))
    reports.awaited()
    assert events.unwatched == {"GPU-0": "unknown"}
    del library.status["nvmlDeviceRegisterEvents", 0]
    seconds.now += 1
    events.watch(handles(0, 1))
    reports.end(TIMEOUT)
    assert [gpu for gpu, _ in reports.registered[2]] == [0, 1]


def test_another_gpu_is_watched_although_events_never_cease(
    reports: Reports, retried: tuple[GpuEvents, Seconds]
) -> None:
    events, seconds = retried
    events.watch(handles(0))
    reports.awaited()
    events.watch(handles(0, 1))
    reports.end((0, XID, 13), (0, XID, 13))
    assert len(reports.registered) == 1
    seconds.now += LINGER_SECONDS
    reports.end((0, XID, 13))
    assert events.xids()["GPU-0"][13][0] == 3
    assert [gpu for gpu, _ in reports.registered[2]] == [0, 1]


def test_a_gpu_that_reports_no_xid_errors_has_a_reason_until_it_does(
    library: Any, driver: Driver, reports: Reports
) -> None:
    library.status["nvmlDeviceRegisterEvents", 0] = UNKNOWN
    driver.read()
    reports.awaited()
    reported = driver.read().gpus
    assert reported[0].unsupported["xid"] == "the driver returned unknown to the request for events; the worker retries"
    assert "xid" not in reported[1].unsupported
    driver._events.unwatched = {}
    assert "xid" not in driver.read().gpus[0].unsupported
