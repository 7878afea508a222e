"""Busy seconds from the driver's ring buffer of samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pynvml
import pytest
from nvml.answers import target

from trackside_daemon.nvml.readers.busy import MAX_EMPTY_CYCLES, BusyTime
from trackside_daemon.nvml.readers.unsupported import Unsupported
from trackside_daemon.nvml.worker.driver import Driver
from trackside_daemon.nvml.worker.library import CountedNvml

if TYPE_CHECKING:
    from collections.abc import Callable

SUCCESS, NOT_SUPPORTED, NOT_FOUND, NO_DATA = 0, 3, 6, 21
START = 1_700_000_000_000_000
"""Microseconds since 1970, like the driver's timestamps."""


class Ring:
    """Samples of the driver: timestamps and percentages.

    Attributes:
        kind: The type in which the values are written, by *member* of the union.
        late: How many samples the second of pynvml's two calls finds fewer than the first, and says so or not.
    """

    def __init__(self, library: Any) -> None:
        self.samples: list[tuple[int, float]] = []
        self.kind, self.member = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, "uiVal"
        self.late, self.admitted = 0, True
        self.empty = NOT_FOUND
        library.functions["nvmlDeviceGetSamples"] = self.answer

    def answer(self, *call: Any) -> int:
        *_, sampling, since, kind, count, places = call
        assert sampling.value == pynvml.NVML_GPU_UTILIZATION_SAMPLES
        found = [sample for sample in self.samples if sample[0] > since.value]
        target(kind).value = self.kind
        if not found:
            return self.empty
        if places is None:
            target(count).value = len(found)
            return SUCCESS
        found = found[: len(found) - self.late]
        for place, (stamp, percent) in zip(places, found, strict=False):
            place.timeStamp = stamp
            setattr(place.sampleValue, self.member, percent)
        if self.admitted:
            target(count).value = len(found)
        return SUCCESS

    def add(self, *percents: float, apart: int = 500_000) -> None:
        """Add samples that are *apart* microseconds from each other."""
        for percent in percents:
            last = self.samples[-1][0] if self.samples else START
            self.samples.append((last + apart, percent))


@pytest.fixture
def ring(library: Any) -> Ring:
    return Ring(library)


@pytest.fixture
def unsupported() -> Unsupported:
    return Unsupported()


@pytest.fixture
def busy(ring: Ring, unsupported: Unsupported) -> Callable[[], float | None]:
    nvml, reader = CountedNvml(pynvml), BusyTime()

    def read() -> float | None:
        values = reader(nvml, pynvml.nvmlDeviceGetHandleByIndex(0), unsupported)
        assert {value[:2] for value in values} <= {("busy_seconds_total", ())}
        return values[0][2] if values else None

    return read


def test_samples_from_before_the_first_cycle_are_not_counted(ring: Ring, busy: Any) -> None:
    ring.add(100, 100, 100)
    assert busy() == 0


def test_each_sample_covers_the_time_since_the_one_before(ring: Ring, busy: Any) -> None:
    ring.add(100)
    busy()
    ring.add(100, 50)
    ring.add(10, apart=1_000_000)
    assert busy() == pytest.approx(0.5 + 0.25 + 0.1)
    ring.add(100)
    assert busy() == pytest.approx(0.85 + 0.5)


def test_a_sample_that_is_returned_again_is_counted_once(ring: Ring, busy: Any) -> None:
    ring.add(0)
    busy()
    ring.add(100)
    assert [busy(), busy(), busy()] == [0.5, 0.5, 0.5]


@pytest.mark.parametrize("status", [SUCCESS, NOT_FOUND, NO_DATA])
def test_no_new_samples_change_nothing(ring: Ring, busy: Any, status: int) -> None:
    ring.empty = status
    assert busy() == 0
    ring.add(0)
    busy()
    ring.add(100)
    assert [busy(), busy()] == [0.5, 0.5]


def test_time_with_overwritten_samples_is_neither_invented_nor_left_out_in_silence(
    ring: Ring, busy: Any, unsupported: Unsupported
) -> None:
    ring.add(100)
    busy()
    ring.add(100, 100)
    assert busy() == 1.0
    ring.add(100, apart=30_000_000)
    ring.add(100)
    assert busy() is None
    assert "shorter --sample.interval" in unsupported.reasons()["busy"]


def test_after_a_loss_busy_seconds_are_reported_again_when_a_cycle_has_missed_nothing(ring: Ring, busy: Any) -> None:
    ring.add(100)
    busy()
    ring.add(100, apart=30_000_000)
    assert [busy(), busy()] == [None, None]
    ring.add(100, apart=30_000_000)
    assert [busy(), busy()] == [None, None]
    ring.add(100)
    assert busy() == 0.5


@pytest.mark.parametrize(("seconds", "reported"), [(1, True), (10, True), (20, False), (60, False)])
def test_at_long_intervals_there_are_no_busy_seconds_rather_than_too_few(
    ring: Ring, busy: Any, seconds: int, reported: bool
) -> None:
    ring.add(*[100] * 100, apart=1_000_000 // 6)
    busy()
    for cycle in range(1, 4):
        ring.add(*[100] * (6 * seconds), apart=1_000_000 // 6)
        ring.samples = ring.samples[-100:]
        assert busy() == (pytest.approx(cycle * seconds, rel=1e-3) if reported else None)


def test_busy_time_before_a_loss_is_no_gap(ring: Ring, busy: Any, unsupported: Unsupported) -> None:
    ring.add(100)
    busy()
    unsupported.clear()
    ring.add(100, apart=30_000_000)
    assert busy() == 0
    ring.add(100)
    assert busy() == 0.5


@pytest.mark.parametrize("admitted", [True, False])
def test_samples_that_are_gone_by_the_second_call_are_counted_when_they_come(
    ring: Ring, busy: Any, admitted: bool
) -> None:
    ring.add(0)
    busy()
    ring.add(100, 100, 100)
    ring.late, ring.admitted = 1, admitted
    assert busy() == 1.0
    ring.late = 0
    assert busy() == 1.5


@pytest.mark.parametrize(
    ("kind", "member"),
    [
        (pynvml.NVML_VALUE_TYPE_DOUBLE, "dVal"),
        (pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, "ullVal"),
        (pynvml.NVML_VALUE_TYPE_SIGNED_INT, "siVal"),
    ],
)
def test_values_are_read_by_the_type_that_the_driver_reports(ring: Ring, busy: Any, kind: int, member: str) -> None:
    ring.kind, ring.member = kind, member
    ring.add(0)
    busy()
    ring.add(40)
    assert busy() == pytest.approx(0.2)


def test_a_share_above_all_is_not_counted(ring: Ring, busy: Any) -> None:
    ring.add(0)
    busy()
    ring.add(0xFFFFFFFF, 100)
    assert busy() == 0.5


def test_when_the_clock_was_set_back_counting_continues(ring: Ring, busy: Any) -> None:
    ring.add(0)
    busy()
    ring.samples = [(START - 3_600_000_000, 100)]
    for _ in range(MAX_EMPTY_CYCLES + 2):
        assert busy() == 0
    ring.add(100)
    assert busy() == 0.5


def test_a_gpu_without_samples_has_no_busy_seconds(library: Any, ring: Ring) -> None:
    library.status["nvmlDeviceGetSamples"] = NOT_SUPPORTED
    gpu = Driver(pynvml).read().gpus[0]
    assert "busy_seconds_total" not in {family for family, _, _ in gpu.values}
    assert "busy" in gpu.unsupported


def test_a_type_that_is_not_known_yet_is_refused_in_words_and_the_rest_continues(library: Any, ring: Ring) -> None:
    ring.add(0)
    ring.kind, ring.member = 9, "ullVal"
    gpu = Driver(pynvml).read().gpus[0]
    assert "value type 9 is newer" in gpu.unsupported["busy"]
    assert ("utilization_ratio", (), 0.97) in gpu.values
