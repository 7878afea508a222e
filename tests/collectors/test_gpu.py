"""GPU series, from readings as plain objects."""

from __future__ import annotations

from typing import cast

import pytest

from trackside_daemon.collectors.base import Collector, NothingToCollect
from trackside_daemon.collectors.gpu import GpuCollector
from trackside_daemon.nvml.handle import Nvml, NvmlAbsent, NvmlUnavailable
from trackside_daemon.nvml.reading import GpuReading, Reading
from trackside_daemon.nvml.simulated import simulate

INFO = {"name": "NVIDIA H100", "pci_bus_id": "00000000:01:00.0", "source": "nvml"}
DRIVER = {"driver_version": "580.95", "nvml_version": "13.580.95", "cuda_version": "13.0"}


class Says:
    """A handle that says one thing."""

    def __init__(self, answer: Reading | Exception) -> None:
        self.answer = answer

    def read(self, _patience: float) -> Reading:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def collector(answer: Reading | Exception) -> GpuCollector:
    return GpuCollector(cast("Nvml", Says(answer)), patience=1.0)


def series(answer: Reading) -> dict[tuple[str, ...], object]:
    return {(sample.metric.name, *sample.labels): sample.value for sample in collector(answer).collect()}


def test_a_value_carries_the_gpu_its_uuid_and_its_own_labels() -> None:
    gpu = GpuReading(3, "GPU-3", INFO, [("temperature_celsius", ("gpu",), 61.0), ("power_watts", (), 412.5)])
    assert series(Reading([gpu], DRIVER)) == {
        ("trackside_gpus_visible",): 1,
        ("trackside_nvidia_driver_info", "580.95", "13.580.95", "13.0"): 1,
        ("trackside_gpu_info", "3", "GPU-3", "NVIDIA H100", "00000000:01:00.0", "nvml"): 1,
        ("trackside_gpu_temperature_celsius", "3", "GPU-3", "gpu"): 61.0,
        ("trackside_gpu_power_watts", "3", "GPU-3"): 412.5,
    }


def test_every_sample_has_a_value_for_each_label() -> None:
    for sample in collector(simulate(2, now=0.0)).collect():
        assert len(sample.labels) == len(sample.metric.labels), sample.metric.name


def test_a_family_of_a_newer_worker_is_passed_over() -> None:
    gpu = GpuReading(0, "GPU-0", INFO, [("of_tomorrow_ratio", (), 0.5), ("up", (), 1.0)])
    assert ("trackside_gpu_up", "0", "GPU-0") in series(Reading([gpu]))


def test_a_host_without_a_driver_has_nothing_to_collect_and_says_the_cure() -> None:
    absent = NvmlAbsent("libnvidia-ml.so.1 not found; install the NVIDIA driver")
    with pytest.raises(NothingToCollect) as caught:
        collector(absent).collect()
    assert str(caught.value) == (
        "NVML is not available: libnvidia-ml.so.1 not found; install the NVIDIA driver, "
        "or switch the collector off with --no-collector.gpu"
    )


def test_a_worker_that_is_late_is_a_failure() -> None:
    with pytest.raises(NvmlUnavailable):
        collector(NvmlUnavailable("late")).collect()


def test_it_keeps_the_contract_of_a_collector() -> None:
    kept: Collector = collector(Reading())
    assert kept.name == "gpu"
