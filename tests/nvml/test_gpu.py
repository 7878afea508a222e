"""One GPU over many cycles: values read in each, and cached values."""

from __future__ import annotations

from typing import Any

import pynvml
import pytest
from nvml.conftest import FUNCTIONS

from trackside_daemon.nvml.reader_groups import SLOW_SECONDS, selected_groups
from trackside_daemon.nvml.worker.driver import Driver, Gpu
from trackside_daemon.nvml.worker.library import CountedNvml

FAST, SLOW = "nvmlDeviceGetPowerUsage", "nvmlDeviceGetPersistenceMode"
NOT_SUPPORTED, TIMEOUT, GPU_IS_LOST, UNKNOWN = 3, 10, 15, 999
IDENTIFYING = {"nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID"}


class Watched:
    """The first GPU, with a clock that the test sets."""

    def __init__(self, library: Any) -> None:
        self.now = 100.0
        self.nvml = CountedNvml(pynvml)
        self.gpu = Gpu("GPU-0", {}, selected_groups(), lambda: self.now)
        self._handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        library.values[SLOW] = 1

    def read(self) -> float | None:
        """Return whether persistence mode is on; None if the series is missing."""
        values = {family: value for family, _, value in self.gpu.read(self.nvml, self._handle)}
        return values.get("persistence_mode")

    def calls(self, function: str) -> int:
        return sum(self.nvml.calls[function].values())


@pytest.fixture
def watched(library: Any) -> Watched:
    return Watched(library)


def test_rarely_changing_values_are_cached_between_reads(watched: Watched, library: Any) -> None:
    assert [watched.read() for _ in range(3)] == [1, 1, 1]
    assert (watched.calls(FAST), watched.calls(SLOW)) == (3, 1)
    library.values[SLOW] = 0
    watched.now += SLOW_SECONDS
    assert watched.read() == 0


def test_a_failed_slow_reader_gives_nothing_and_is_retried_in_the_next_cycle(watched: Watched, library: Any) -> None:
    watched.read()
    library.status[SLOW] = TIMEOUT
    watched.now += SLOW_SECONDS
    assert watched.read() is None
    del library.status[SLOW]
    assert watched.read() == 1


def test_after_a_loss_nothing_from_before_it_is_reported(watched: Watched, library: Any) -> None:
    watched.read()
    library.status[FAST] = GPU_IS_LOST
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        watched.read()
    del library.status[FAST]
    library.values[SLOW] = 0
    assert watched.read() == 0


def test_when_the_mode_of_the_gpu_changes_all_is_read_anew(watched: Watched, library: Any) -> None:
    watched.read()
    library.values[SLOW] = 0
    watched.gpu.unsupported.clear()
    assert watched.read() == 0


def test_a_value_that_cannot_be_is_counted_once_each_time_it_is_read(watched: Watched, library: Any) -> None:
    library.values[SLOW] = 7
    assert [watched.read() for _ in range(3)] == [None] * 3
    assert watched.gpu.rejected == {"trackside_gpu_persistence_mode": 1}


def breaks(*_: Any) -> None:
    raise RuntimeError("not what\nthis daemon knows")


def test_a_reader_that_fails_in_a_way_of_its_own_costs_only_its_families(library: Any) -> None:
    library.functions[FAST] = breaks
    first, second = Driver(pynvml).read().gpus
    assert first.unsupported["power"] == "it failed: RuntimeError: not what this daemon knows"
    for gpu in (first, second):
        families = {family for family, _, _ in gpu.values}
        assert "power_watts" not in families
        assert "energy_joules_total" in families


def test_a_name_that_cannot_be_read_costs_only_the_name(library: Any) -> None:
    library.functions["nvmlDeviceGetName"] = breaks
    gpu = Driver(pynvml).read().gpus[0]
    assert gpu.info["name"] == ""
    assert gpu.info["pci_bus_id"]


def answers_nothing(library: Any, index: int) -> None:
    """Make all calls but those of its identity fail with the error UNKNOWN."""
    for function in (*library.values, *FUNCTIONS, "nvmlDeviceGetSamples"):
        if function.startswith("nvmlDeviceGet") and function not in IDENTIFYING:
            library.status[function, index] = UNKNOWN


def test_a_gpu_that_reports_only_its_identity_is_down_with_a_reason(library: Any) -> None:
    driver = Driver(pynvml)
    driver.read()
    answers_nothing(library, 0)
    first, second = driver.read().gpus
    assert (first.uuid, first.values) == ("GPU-0", [("up", (), 0.0)])
    assert first.unsupported == {"up": "unknown: it does not answer; see dmesg for NVRM and Xid"}
    assert len(second.values) == 11
    library.status.clear()
    assert len(driver.read().gpus[0].values) == 11


def test_a_gpu_that_answers_one_thing_is_up(library: Any) -> None:
    answers_nothing(library, 0)
    del library.status["nvmlDeviceGetUtilizationRates", 0]
    values = {family: value for family, _, value in Driver(pynvml).read().gpus[0].values}
    assert values == {"up": 1, "utilization_ratio": 0.97, "memory_controller_utilization_ratio": 0.41}


def test_a_gpu_that_supports_nothing_is_up(library: Any) -> None:
    for function in (*library.values, *FUNCTIONS):
        if function.startswith("nvmlDeviceGet") and function not in IDENTIFYING:
            library.status[function] = NOT_SUPPORTED
    assert Driver(pynvml).read().gpus[0].values == [("up", (), 1.0)]
