"""A driver that is too slow for the interval, by a clock that the readers move."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pynvml
import pytest

from trackside_daemon.nvml.reader_groups import selected_groups
from trackside_daemon.nvml.worker.driver import MAX_SLOW_CYCLES, CycleBudget, Driver, Gpu
from trackside_daemon.nvml.worker.library import CountedNvml

if TYPE_CHECKING:
    from trackside_daemon.nvml.reading import GpuReading

LIMIT = 1.0
NOT_SUPPORTED = 3


class Slow:
    """A clock, and calls that move it."""

    def __init__(self, library: Any) -> None:
        self.now = 0.0
        self._library = library
        self._delays: dict[str, float] = {}

    def __call__(self) -> float:
        return self.now

    def delay(self, function: str, seconds: float) -> None:
        """Make the function take that many seconds, and return 0."""
        self._delays[function] = seconds
        self._library.functions[function] = self._call

    def _call(self, _: Any, name: str, *__: Any) -> None:
        self.now += self._delays[name]


@pytest.fixture
def slow(library: Any) -> Slow:
    library.count = 2
    return Slow(library)


def cycles(slow: Slow, count: int, *extra: str) -> list[GpuReading]:
    driver = Driver(pynvml, selected_groups(extra), clock=slow)
    return [driver.read(interval=LIMIT).gpus[1] for _ in range(count)]


def test_the_costliest_optional_reader_of_slow_cycles_is_refused_in_words(slow: Slow) -> None:
    slow.delay("nvmlDeviceGetPcieThroughput", 0.2)
    slow.delay("nvmlDeviceGetBAR1MemoryInfo", 0.15)
    slow.delay("nvmlDeviceGetPersistenceMode", 0.3)
    last = cycles(slow, MAX_SLOW_CYCLES + 1, "all")[-1]
    assert last.unsupported["pcie-throughput"] == "it took 0.80 s of a cycle that is longer than the interval"
    families = {family for family, _, _ in last.values}
    assert "pcie_transmit_bytes_per_second" not in families
    assert {"bar1_memory_bytes", "persistence_mode"} <= families


def test_the_next_costliest_follows_when_that_was_not_enough(slow: Slow) -> None:
    slow.delay("nvmlDeviceGetPcieThroughput", 0.2)
    slow.delay("nvmlDeviceGetBAR1MemoryInfo", 0.6)
    last = cycles(slow, 2 * MAX_SLOW_CYCLES, "all")[-1]
    assert "bar1" in last.unsupported
    assert "pcie-throughput" not in last.unsupported


def test_two_slow_cycles_are_borne(slow: Slow) -> None:
    driver = Driver(pynvml, selected_groups(["all"]), clock=slow)
    for seconds in (0.5, 0.5, 0.1, 0.5, 0.5):
        slow.delay("nvmlDeviceGetPcieThroughput", seconds)
        gpu = driver.read(interval=LIMIT).gpus[0]
    assert "pcie-throughput" not in gpu.unsupported


def test_a_cycle_is_slow_by_the_interval_that_it_is_asked_with(slow: Slow) -> None:
    driver = Driver(pynvml, selected_groups(["all"]), clock=slow)
    slow.delay("nvmlDeviceGetPcieThroughput", 0.5)
    for interval, refused in ((5.0, False), (LIMIT, True)):
        for _ in range(MAX_SLOW_CYCLES + 1):
            gpu = driver.read(interval=interval).gpus[0]
        assert ("pcie-throughput" in gpu.unsupported) == refused


def test_a_slow_cycle_without_anything_optional_loses_nothing(slow: Slow) -> None:
    slow.delay("nvmlDeviceGetPersistenceMode", 5.0)
    first, *_, last = cycles(slow, MAX_SLOW_CYCLES + 2)
    assert [value[:2] for value in last.values] == [value[:2] for value in first.values]


def test_the_mig_reader_is_never_skipped_however_slow_it_is(slow: Slow) -> None:
    slow.delay("nvmlDeviceGetMigMode", 5.0)
    last = cycles(slow, 2 * MAX_SLOW_CYCLES)[-1]
    assert "mig" not in last.unsupported
    assert ("mig_mode", (), 0) in last.values


@pytest.mark.parametrize(
    ("function", "group"),
    [
        ("nvmlDeviceGetComputeRunningProcesses_v3", "processes"),
        ("nvmlDeviceGetProcessUtilization", "process-utilization"),
        ("nvmlDeviceGetRowRemapperHistogram", "row-remap-banks"),
    ],
)
def test_the_optional_readers(slow: Slow, function: str, group: str) -> None:
    slow.delay(function, 0.1)
    slow.delay("nvmlDeviceGetPersistenceMode", 20.0)
    pace, nvml = CycleBudget(), CountedNvml(pynvml)
    gpu = Gpu("GPU-0", {}, selected_groups(), slow)
    gpu.read(nvml, pynvml.nvmlDeviceGetHandleByIndex(0))
    for _ in range(MAX_SLOW_CYCLES):
        pace.record_cycle(LIMIT + 0.1, LIMIT, [gpu])
    assert group in gpu.unsupported


def test_after_one_reader_was_given_up_the_cycles_are_counted_anew(slow: Slow) -> None:
    slow.delay("nvmlDeviceGetPcieThroughput", 0.3)
    slow.delay("nvmlDeviceGetBAR1MemoryInfo", 0.7)
    last = cycles(slow, 2 * MAX_SLOW_CYCLES, "all")[-1]
    assert "bar1" in last.unsupported
    assert "pcie-throughput" not in last.unsupported
    last = cycles(slow, 2 * MAX_SLOW_CYCLES + 1, "all")[-1]
    assert "pcie-throughput" in last.unsupported


def test_a_gpu_that_is_not_read_costs_nothing(slow: Slow, library: Any) -> None:
    slow.delay("nvmlDeviceGetPcieThroughput", 3.0)
    slow.delay("nvmlDeviceGetBAR1MemoryInfo", 1.2)
    library.status["nvmlDeviceGetPcieThroughput", 1] = NOT_SUPPORTED
    driver = Driver(pynvml, selected_groups(["all"]), clock=slow)
    driver.read(interval=LIMIT)
    for _ in range(MAX_SLOW_CYCLES - 1):
        driver.read(quarantined=[0], interval=LIMIT)
    second = driver.read(quarantined=[0], interval=LIMIT).gpus[1]
    assert "bar1" in second.unsupported
