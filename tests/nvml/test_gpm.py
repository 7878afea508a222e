"""GPM: metrics between two samples, each of which may be unsupported."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pynvml
import pytest
from nvml.answers import target
from processes import eventually

from trackside_daemon.nvml.reader_groups import selected_groups
from trackside_daemon.nvml.readers import gpm
from trackside_daemon.nvml.readers.unsupported import Unsupported
from trackside_daemon.nvml.worker.driver import Driver
from trackside_daemon.nvml.worker.library import CountedNvml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from scripted_workers import Clock

    from trackside_daemon.nvml.reading import Value

NOT_SUPPORTED, GPU_IS_LOST, VERSION_MISMATCH = 3, 15, 25
UNITS = 50.0
"""Growth of each metric between two samples, in the metric's unit."""


class Monitor:
    """Counters of a GPU: a sample holds its sequence number.

    Attributes:
        accepted: Moments by the address of a sample.
        windows: The moments of the two samples of each question.
        refused: Status by metric.
    """

    def __init__(self, library: Any) -> None:
        self.allocated = 0
        self.moments = 0
        self.freed: list[int] = []
        self.sampled: dict[int, int] = {}
        self.windows: list[tuple[int, int]] = []
        self.asked: list[list[int]] = []
        self.refused: dict[int, int] = {}
        library.functions |= {
            "nvmlGpmSampleAlloc": self.allocate,
            "nvmlGpmSampleFree": self.free,
            "nvmlGpmSampleGet": self.sample,
            "nvmlGpmMetricsGet": self.measure,
        }

    def allocate(self, _: Any, __: str, out: Any) -> None:
        self.allocated += 1
        target(out).contents = pynvml.struct_c_nvmlGpmSample_t()

    def free(self, _: Any, __: str, sample: Any) -> None:
        self.freed.append(address(sample))

    def sample(self, _: Any, __: str, ___: Any, sample: Any) -> None:
        self.moments += 1
        self.sampled[address(sample)] = self.moments

    def measure(self, _: Any, __: str, out: Any) -> None:
        request = target(out)
        assert request.version == pynvml.NVML_GPM_METRICS_GET_VERSION
        self.windows.append((self.sampled[address(request.sample1)], self.sampled[address(request.sample2)]))
        metrics = request.metrics[: request.numMetrics]
        self.asked.append([metric.metricId for metric in metrics])
        for metric in metrics:
            metric.nvmlReturn = self.refused.get(metric.metricId, 0)
            metric.value = UNITS


def address(sample: Any) -> int:
    return pynvml.cast(sample, pynvml.c_void_p).value or 0


@pytest.fixture
def monitor(library: Any) -> Iterator[Monitor]:
    yield Monitor(library)
    gc.collect()  # what is left frees its samples while the fake still stands


@pytest.fixture
def read(monitor: Monitor, clock: Clock) -> Callable[..., list[Value]]:
    """Reader of one GPU, called with the seconds since the cycle before."""
    nvml, reader, unsupported = CountedNvml(pynvml), gpm.GpmReader(gpm.RATIOS, clock), Unsupported(clock)

    def read(seconds: float = 1.0, of: Unsupported = unsupported) -> list[Value]:
        clock.now += seconds
        return reader(nvml, pynvml.nvmlDeviceGetHandleByIndex(0), of)

    return read


def test_the_first_cycle_has_only_one_sample_and_reports_nothing(read: Any, monitor: Monitor) -> None:
    assert read() == []
    assert monitor.windows == []


def test_each_cycle_is_measured_from_the_one_before_with_two_samples_allocated_once(
    read: Any, monitor: Monitor
) -> None:
    for _ in range(4):
        read()
    assert monitor.windows == [(1, 2), (2, 3), (3, 4)]
    assert monitor.allocated == 2


def test_percent_become_ratios_and_pipes_have_names(read: Any) -> None:
    read()
    values = {(family, *labels): value for family, labels, value in read()}
    assert values["sm_active_ratio",] == 0.5
    assert {labels[1] for labels in values if labels[0] == "pipe_active_ratio"} == {
        *("hmma", "imma", "dfma", "dmma", "fp64", "fp32", "fp16", "integer")
    }
    assert len(values) == 13


def test_samples_less_than_a_tenth_of_a_second_apart_are_not_used(read: Any, monitor: Monitor) -> None:
    read()
    assert read(0.05) == []
    assert len(read(0.06)) == 13
    assert monitor.windows == [(1, 2)]


def test_a_sample_of_minutes_ago_is_only_replaced(read: Any, monitor: Monitor) -> None:
    read()
    assert read(181) == []
    assert len(read()) == 13
    assert monitor.windows == [(2, 3)]


def test_a_sample_from_before_the_gpu_changed_is_not_used(read: Any, monitor: Monitor) -> None:
    unsupported = Unsupported()
    read(of=unsupported)
    unsupported.clear()
    assert read(of=unsupported) == []
    read(of=unsupported)
    assert monitor.windows == [(2, 3)]


def test_a_sample_that_failed_is_never_the_first_of_a_window(read: Any, monitor: Monitor, library: Any) -> None:
    read()
    library.status["nvmlGpmSampleGet"] = 999
    with pytest.raises(pynvml.NVMLError):
        read()
    del library.status["nvmlGpmSampleGet"]
    assert read() == []
    read()
    assert monitor.windows == [(2, 3)]


def test_a_metric_that_is_refused_costs_no_other_and_is_not_retried(read: Any, monitor: Monitor) -> None:
    unsupported = Unsupported()
    monitor.refused = {5: NOT_SUPPORTED, 8: VERSION_MISMATCH}
    read(of=unsupported)
    assert len(read(of=unsupported)) == 11
    read(of=unsupported)
    assert set(unsupported.reasons()) == {"tensor_active_ratio", "pipe_active_ratio{dmma}"}
    assert [len(asked) for asked in monitor.asked] == [13, 11]


def test_when_all_metrics_are_refused_nothing_is_read(read: Any, monitor: Monitor) -> None:
    unsupported = Unsupported()
    monitor.refused = dict.fromkeys(range(1, 14), NOT_SUPPORTED)
    for _ in range(3):
        assert read(of=unsupported) == []
    assert len(monitor.windows) == 1


def test_a_gpu_that_is_lost_between_the_samples_is_lost(read: Any, monitor: Monitor) -> None:
    monitor.refused = {2: GPU_IS_LOST}
    read()
    with pytest.raises(pynvml.NVMLError) as lost:
        read()
    assert lost.value.value == GPU_IS_LOST


def test_cycles_are_counted_as_they_are(monitor: Monitor, clock: Clock) -> None:
    reader, unsupported = gpm.GpmReader(gpm.CYCLES, clock), Unsupported(clock)
    reader(CountedNvml(pynvml), pynvml.nvmlDeviceGetHandleByIndex(0), unsupported)
    clock.now += 1
    assert reader(CountedNvml(pynvml), pynvml.nvmlDeviceGetHandleByIndex(0), unsupported) == [
        ("sm_cycles_total", (), UNITS),
        ("sm_active_cycles_total", (), UNITS),
        ("tensor_active_cycles_total", (), UNITS),
    ]
    assert monitor.asked == [[248, 249, 250]]


def test_samples_are_freed_with_their_reader(monitor: Monitor, clock: Clock) -> None:
    reader = gpm.GpmReader(gpm.RATIOS, clock)
    reader(CountedNvml(pynvml), pynvml.nvmlDeviceGetHandleByIndex(0), Unsupported())
    accepted = set(monitor.sampled)
    assert not monitor.freed
    del reader
    gc.collect()
    assert len(monitor.freed) == 2
    assert accepted < set(monitor.freed)


def test_a_sample_that_cannot_be_freed_fails_no_one(library: Any, monitor: Monitor, clock: Clock) -> None:
    reader = gpm.GpmReader(gpm.RATIOS, clock)
    reader(CountedNvml(pynvml), pynvml.nvmlDeviceGetHandleByIndex(0), Unsupported())
    library.status["nvmlGpmSampleFree"] = GPU_IS_LOST
    del reader
    assert not monitor.freed


@pytest.mark.parametrize("status", [NOT_SUPPORTED, VERSION_MISMATCH])
def test_a_gpu_before_hopper_refuses_its_first_sample_and_is_asked_once(
    library: Any, monitor: Monitor, status: int
) -> None:
    library.status["nvmlGpmSampleGet"] = status
    driver = Driver(pynvml)
    driver.read()
    reading = driver.read()
    assert "gpm" in reading.gpus[0].unsupported
    assert sum(reading.calls["nvmlGpmSampleGet"].values()) == len(reading.gpus)


def test_after_a_loss_the_sample_from_before_it_is_not_used(library: Any, monitor: Monitor) -> None:
    driver = Driver(pynvml)
    library.count = 1
    driver.read()
    library.status["nvmlDeviceGetUUID"] = GPU_IS_LOST
    driver.read()
    del library.status["nvmlDeviceGetUUID"]
    driver.read()
    assert monitor.windows == []
    eventually(lambda: driver.read() and monitor.windows)  # samples are a tenth of a second apart
    assert monitor.windows == [(2, 3)]


def test_pcie_is_measured_in_bytes_a_second_where_gpm_is_read_by_default(monitor: Monitor, clock: Clock) -> None:
    reader, unsupported = selected_groups()["gpm"].new_reader(), Unsupported(clock)
    nvml, gpu = CountedNvml(pynvml), pynvml.nvmlDeviceGetHandleByIndex(0)
    values = eventually(lambda: reader(nvml, gpu, unsupported))  # the second sample is a tenth of a second later
    reported = {family: value for family, _, value in values if family.startswith("pcie_")}
    assert reported == {
        "pcie_transmit_bytes_per_second": UNITS * 1024 * 1024,
        "pcie_receive_bytes_per_second": UNITS * 1024 * 1024,
    }
