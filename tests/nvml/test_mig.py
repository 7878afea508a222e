"""MIG: devices that are made and destroyed, and GPM of their instances."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any, NamedTuple

import pynvml
import pytest
from nvml.answers import target

from trackside_daemon.nvml.readers.mig import GPM_NAME, MigReader
from trackside_daemon.nvml.readers.unsupported import Unsupported
from trackside_daemon.nvml.worker.driver import Driver
from trackside_daemon.nvml.worker.library import CountedNvml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trackside_daemon.nvml.reading import Value

SUCCESS, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND, GPU_IS_LOST = 0, 2, 3, 6, 15
PLACES = 7
FIRST = 1000
"""First handle of a MIG device."""


class Slot(NamedTuple):
    """A MIG device of the fake."""

    uuid: str
    gpu_instance: int
    compute_instance: int = 0
    name: str = "NVIDIA H100 80GB HBM3 MIG 1g.10gb"


class Board:
    """A GPU with MIG.

    Attributes:
        slots: Its MIG devices by their place.
        sampled: GPU instances and the moments at which they were sampled, by the address of the sample.
        windows: The two of each question.
    """

    def __init__(self, library: Any) -> None:
        self.on = 1
        self.slots: dict[int, Slot] = {}
        self.moments = 0
        self.sampled: dict[int, tuple[int, int]] = {}
        self.windows: list[tuple[tuple[int, int], tuple[int, int]]] = []
        self._parents = {name: library.__getattr__(name) for name in ("nvmlDeviceGetUUID", "nvmlDeviceGetName")}
        library.functions |= {
            "nvmlDeviceGetMigMode": self.mode,
            "nvmlDeviceGetMaxMigDeviceCount": _write(lambda _: PLACES),
            "nvmlDeviceGetMigDeviceHandleByIndex": self.handle,
            "nvmlDeviceGetGpuInstanceId": _write(lambda handle: self.slot(handle).gpu_instance),
            "nvmlDeviceGetComputeInstanceId": _write(lambda handle: self.slot(handle).compute_instance),
            "nvmlDeviceGetAttributes_v2": self.attributes,
            "nvmlDeviceGetUUID": self.text,
            "nvmlDeviceGetName": self.text,
            "nvmlGpmSampleAlloc": _allocate,
            "nvmlGpmSampleFree": lambda *_: None,
            "nvmlGpmMigSampleGet": self.sample,
            "nvmlGpmMetricsGet": self.measure,
        }

    def slot(self, handle: Any) -> Slot:
        return self.slots[address(handle) - FIRST]

    def mode(self, *call: Any) -> None:
        *_, current, pending = call
        target(current).value, target(pending).value = self.on, self.on

    def handle(self, *call: Any) -> int:
        *_, index, out = call
        if index.value not in self.slots:
            return NOT_FOUND
        pynvml.cast(out, pynvml.POINTER(pynvml.c_void_p))[0] = FIRST + index.value
        return SUCCESS

    def attributes(self, *call: Any) -> None:
        target(call[-1]).gpuInstanceSliceCount, target(call[-1]).memorySizeMB = 2, 19_968

    def text(self, _: Any, name: str, handle: Any, out: Any, size: Any) -> int:
        if address(handle) < FIRST:
            status: int = self._parents[name](handle, out, size)
            return status
        slot = self.slot(handle)
        out.value = (slot.uuid if name == "nvmlDeviceGetUUID" else slot.name).encode()
        return SUCCESS

    def sample(self, *call: Any) -> None:
        *_, instance, sample = call
        self.moments += 1
        self.sampled[address(sample)] = instance, self.moments

    def measure(self, *call: Any) -> None:
        request = target(call[-1])
        self.windows.append((self.sampled[address(request.sample1)], self.sampled[address(request.sample2)]))
        for metric in request.metrics[: request.numMetrics]:
            metric.value = 10 * self.windows[-1][1][0]


def address(handle: Any) -> int:
    return pynvml.cast(handle, pynvml.c_void_p).value or 0


def _write(number: Callable[[Any], int]) -> Callable[..., None]:
    def write(_: Any, __: str, handle: Any, out: Any) -> None:
        target(out).value = number(handle)

    return write


def _allocate(*call: Any) -> None:
    target(call[-1]).contents = pynvml.struct_c_nvmlGpmSample_t()


@pytest.fixture
def board(library: Any) -> Iterator[Board]:
    library.count = 1
    yield Board(library)
    gc.collect()  # what is left frees its samples while the fake still stands


@pytest.fixture
def unsupported() -> Unsupported:
    return Unsupported()


@pytest.fixture
def read(board: Board, unsupported: Unsupported) -> Callable[[], list[Value]]:
    """Return the reader of the GPU, with a second between two cycles."""
    seconds = iter(range(1000, 2000))
    now = [0]
    nvml, reader = CountedNvml(pynvml), MigReader(lambda: now[0])

    def read() -> list[Value]:
        now[0] = next(seconds)
        return reader(nvml, pynvml.nvmlDeviceGetHandleByIndex(0), unsupported)

    return read


def by_family(values: list[Value], family: str) -> dict[tuple[str, ...], float]:
    return {labels: value for name, labels, value in values if name == family}


def test_a_gpu_that_is_not_divided_reports_only_that(read: Any, board: Board) -> None:
    board.on = 0
    assert read() == [("mig_mode", (), 0.0)]


def test_a_gpu_that_cannot_be_divided_refuses_the_question(library: Any, board: Board) -> None:
    library.status["nvmlDeviceGetMigMode"] = NOT_SUPPORTED
    assert "mig" in Driver(pynvml).read().gpus[0].unsupported


def test_each_device_reports_what_it_is_and_empty_places_are_passed_over(read: Any, board: Board) -> None:
    board.slots = {0: Slot("MIG-a", 1), 5: Slot("MIG-b", 2, 1, "NVIDIA H100 80GB HBM3 MIG 1c.3g.40gb")}
    values = read()
    assert ("mig_mode", (), 1.0) in values
    assert set(by_family(values, "mig_info")) == {("MIG-a", "1", "0", "1g.10gb"), ("MIG-b", "2", "1", "1c.3g.40gb")}
    assert by_family(values, "mig_memory_bytes") == {("MIG-a",): 80_000, ("MIG-b",): 80_000}
    assert by_family(values, "mig_memory_used_bytes") == {("MIG-a",): 60_000, ("MIG-b",): 60_000}


def test_a_profile_that_is_not_in_the_name_is_made_of_the_attributes(read: Any, board: Board) -> None:
    board.slots = {0: Slot("MIG-a", 1, 0, "NVIDIA H100 80GB HBM3")}
    assert set(by_family(read(), "mig_info")) == {("MIG-a", "1", "0", "2g.20gb")}


def test_each_gpu_instance_is_measured_from_the_cycle_before(read: Any, board: Board) -> None:
    board.slots = {0: Slot("MIG-a", 1), 1: Slot("MIG-b", 2)}
    assert not by_family(read(), "mig_sm_active_ratio")
    values = read()
    assert by_family(values, "mig_sm_active_ratio") == {("MIG-a",): 0.1, ("MIG-b",): 0.2}
    assert by_family(values, "mig_tensor_active_ratio") == {("MIG-a",): 0.1, ("MIG-b",): 0.2}
    assert board.windows == [((1, 1), (1, 3)), ((2, 2), (2, 4))]


def test_the_activity_of_an_instance_is_reported_for_each_of_its_devices(read: Any, board: Board) -> None:
    board.slots = {0: Slot("MIG-a", 1, 0), 1: Slot("MIG-b", 1, 1)}
    read()
    assert by_family(read(), "mig_sm_active_ratio") == {("MIG-a",): 0.1, ("MIG-b",): 0.1}
    assert len(board.windows) == 1


@pytest.mark.parametrize(
    "after",
    [
        {0: Slot("MIG-a", 1), 1: Slot("MIG-c", 2)},
        {0: Slot("MIG-c", 1)},
        {0: Slot("MIG-a", 1, 1)},
    ],
)
def test_no_window_reaches_across_a_change_of_the_devices(
    read: Any, board: Board, unsupported: Unsupported, after: dict[int, Slot]
) -> None:
    board.slots = {0: Slot("MIG-a", 1)}
    read()
    unsupported.add("pcie", "not_supported")
    board.slots = after
    assert not by_family(read(), "mig_sm_active_ratio")
    assert board.windows == []
    assert "pcie" not in unsupported
    assert by_family(read(), "mig_sm_active_ratio")


def test_all_is_retried_when_the_mode_changes_and_only_then(read: Any, board: Board, unsupported: Unsupported) -> None:
    read()
    unsupported.add("busy", "not_supported")
    read()
    assert "busy" in unsupported
    board.on = 0
    read()
    assert "busy" not in unsupported


def test_an_a100_with_instances_without_gpm_reports_the_rest(
    read: Any, library: Any, board: Board, unsupported: Unsupported
) -> None:
    board.slots = {0: Slot("MIG-a", 1)}
    library.status["nvmlGpmMigSampleGet"] = NOT_SUPPORTED
    read()
    assert by_family(read(), "mig_memory_bytes")
    assert GPM_NAME in unsupported


def test_a_device_that_is_destroyed_while_it_is_asked_is_left_out_until_it_is_gone(
    read: Any, library: Any, board: Board
) -> None:
    board.slots = {0: Slot("MIG-a", 1)}
    read()
    library.status["nvmlDeviceGetGpuInstanceId"] = INVALID_ARGUMENT
    assert read() == [("mig_mode", (), 1.0)]
    del library.status["nvmlDeviceGetGpuInstanceId"]
    assert by_family(read(), "mig_info")


def test_a_gpu_that_is_lost_while_its_devices_are_asked_is_lost(library: Any, board: Board) -> None:
    board.slots = {0: Slot("MIG-a", 1)}
    library.status["nvmlDeviceGetGpuInstanceId"] = GPU_IS_LOST
    assert Driver(pynvml).read().gpus[0].values == [("up", (), 0.0)]


def test_samples_of_an_instance_that_is_gone_are_freed(read: Any, library: Any, board: Board) -> None:
    freed: list[int] = []
    library.functions["nvmlGpmSampleFree"] = lambda *call: freed.append(address(call[-1]))
    board.slots = {0: Slot("MIG-a", 1), 1: Slot("MIG-b", 2)}
    read()
    del board.slots[1]
    read()
    gc.collect()
    assert len(freed) == 2


@pytest.mark.parametrize("function", ["nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetGpuInstanceId"])
def test_devices_that_are_just_being_made_are_back_in_the_cycle_after(
    read: Any, library: Any, board: Board, unsupported: Unsupported, function: str
) -> None:
    board.slots = {0: Slot("MIG-a", 1), 1: Slot("MIG-b", 2)}
    devices = by_family(read(), "mig_info")
    assert len(devices) == 2
    library.status[function] = INVALID_ARGUMENT
    assert read() == [("mig_mode", (), 1.0)]
    assert not unsupported.reasons()
    del library.status[function]
    assert by_family(read(), "mig_info") == devices


def test_a_device_with_a_name_that_is_not_utf8_is_described_by_its_attributes(
    read: Any, library: Any, board: Board
) -> None:
    board.slots = {0: Slot("MIG-a", 1)}
    broken = board.text

    def name(fake: Any, function: str, handle: Any, out: Any, size: Any) -> int:
        status = broken(fake, function, handle, out, size)
        out.value = b"\xff\xfe H100"
        return status

    library.functions["nvmlDeviceGetName"] = name
    assert set(by_family(read(), "mig_info")) == {("MIG-a", "1", "0", "2g.20gb")}


def test_a_device_that_does_not_report_which_it_is_is_left_out(read: Any, library: Any, board: Board) -> None:
    board.slots = {0: Slot("", 1), 1: Slot("MIG-b", 2)}
    assert {labels[0] for labels in by_family(read(), "mig_info")} == {"MIG-b"}
