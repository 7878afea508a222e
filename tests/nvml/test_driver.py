"""Answers and errors of the driver, through the real pynvml."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pynvml
import pytest
from nvml.conftest import FUNCTIONS

from trackside_daemon.nvml.worker.driver import Driver

if TYPE_CHECKING:
    from trackside_daemon.nvml.reading import GpuReading

NOT_SUPPORTED, NO_PERMISSION, DRIVER_NOT_LOADED, GPU_IS_LOST, MISMATCH, UNKNOWN = 3, 4, 9, 15, 18, 999
ABSURD = 0xFFFFFFFF


def values(gpu: GpuReading) -> dict[str, float]:
    return {family: value for family, _, value in gpu.values}


def test_pynvml_still_resolves_functions_where_the_fake_replaces_them() -> None:
    assert isinstance(pynvml._nvmlGetFunctionPointer_cache, dict)


def test_every_family_is_in_base_units(library: Any) -> None:
    gpu = Driver(pynvml).read().gpus[1]
    assert gpu.values == [
        ("up", (), 1.0),
        ("utilization_ratio", (), 0.97),
        ("memory_controller_utilization_ratio", (), 0.41),
        ("memory_bytes", (), 80_000),
        ("memory_used_bytes", (), 60_000),
        ("memory_free_bytes", (), 19_000),
        ("memory_reserved_bytes", (), 1_000),
        ("temperature_celsius", ("gpu",), 61),
        ("power_watts", (), 412.5),
        ("power_limit_watts", ("enforced",), 700.0),
        ("energy_joules_total", (), 1234.567),
    ]


def test_the_gpu_and_the_driver_report_their_identity(library: Any) -> None:
    reading = Driver(pynvml).read()
    gpu = reading.gpus[1]
    assert (gpu.index, gpu.uuid) == (1, "GPU-1")
    reported = {label: value for label, value in gpu.info.items() if value}
    assert reported == {"name": "NVIDIA H100 80GB HBM3", "pci_bus_id": "00000000:02:00.0", "source": "nvml"}
    assert reading.driver == {"driver_version": "580.95.05", "nvml_version": "580.95.05", "cuda_version": "13.1"}


def test_nvml_is_initialised_once(library: Any) -> None:
    driver = Driver(pynvml)
    driver.read()
    driver.read()
    assert library.inits == 1


def test_a_family_that_a_gpu_does_not_support_is_missing_there_and_nowhere_else(library: Any) -> None:
    library.status["nvmlDeviceGetPowerUsage", 0] = NOT_SUPPORTED
    first, second = Driver(pynvml).read().gpus
    assert set(values(second)) - set(values(first)) == {"power_watts"}


def test_a_function_that_the_library_lacks_costs_only_its_families(library: Any) -> None:
    library.missing.add("nvmlDeviceGetMemoryInfo_v2")
    gpu = Driver(pynvml).read().gpus[0]
    assert not any(family.startswith("memory_") and family.endswith("bytes") for family in values(gpu))
    assert values(gpu)["up"] == 1


def test_a_lost_gpu_is_down_and_the_others_are_read(library: Any) -> None:
    driver = Driver(pynvml)
    driver.read()
    library.status["nvmlDeviceGetTemperature", 0] = GPU_IS_LOST
    first, second = driver.read().gpus
    assert (first.uuid, first.values) == ("GPU-0", [("up", (), 0.0)])
    assert len(second.values) == 11


def test_a_gpu_that_was_never_there_is_down_without_a_name(library: Any) -> None:
    library.status["nvmlDeviceGetHandleByIndex_v2"] = GPU_IS_LOST
    first = Driver(pynvml).read().gpus[0]
    assert (first.uuid, first.values) == ("", [("up", (), 0.0)])


@pytest.mark.parametrize(
    ("function", "family"),
    [
        ("nvmlDeviceGetTemperature", "temperature_celsius"),
        ("nvmlDeviceGetPowerUsage", "power_watts"),
        ("nvmlDeviceGetEnforcedPowerLimit", "power_limit_watts"),
    ],
)
def test_a_value_that_cannot_be_is_dropped(library: Any, function: str, family: str) -> None:
    library.values[function] = ABSURD
    assert family not in values(Driver(pynvml).read().gpus[0])


def test_a_sentinel_is_no_energy_and_no_utilization(library: Any) -> None:
    library.values["nvmlDeviceGetTotalEnergyConsumption"] = 2**64 - 1
    library.utilization = (101, 100)
    assert not {"energy_joules_total", "utilization_ratio"} & set(values(Driver(pynvml).read().gpus[0]))


def test_a_name_that_is_not_utf8_is_retained_as_far_as_it_can_be_read(library: Any) -> None:
    library.names = b"NVIDIA \xff100"
    assert Driver(pynvml).read().gpus[0].info["name"] == "NVIDIA \ufffd100"


def test_a_gpu_that_cannot_be_distinguished_from_others_is_down(library: Any) -> None:
    library.status["nvmlDeviceGetUUID", 0] = NO_PERMISSION
    first, second = Driver(pynvml).read().gpus
    assert (first.uuid, first.values) == ("", [("up", (), 0.0)])
    assert values(second)["up"] == 1


@pytest.mark.parametrize(
    ("status", "absent", "message"),
    [
        (DRIVER_NOT_LOADED, True, "modprobe nvidia"),
        (MISMATCH, False, "upgraded under a running kernel module; reboot"),
        (NO_PERMISSION, False, "/dev/nvidia"),
        (999, False, "error 999"),
    ],
)
def test_a_refused_init_names_cause_and_remedy(library: Any, status: int, absent: bool, message: str) -> None:
    library.status["nvmlInitWithFlags"] = status
    reading = Driver(pynvml).read()
    assert message in reading.error
    assert reading.absent is absent


def test_a_driver_unloaded_later_is_reported_as_one_that_never_was(library: Any) -> None:
    driver = Driver(pynvml)
    driver.read()
    library.status["nvmlDeviceGetCount_v2"] = DRIVER_NOT_LOADED
    assert driver.read().absent


def test_a_machine_without_the_library_reports_to_install_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_found(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "CDLL", not_found)
    reading = Driver(pynvml).read()
    assert reading.error == "libnvidia-ml.so.1 not found; install the NVIDIA driver"
    assert reading.absent


def test_a_driver_without_gpus_is_absent(library: Any) -> None:
    library.count = 0
    reading = Driver(pynvml).read()
    assert reading.absent
    assert "sees no GPU" in reading.error


def test_a_gpu_that_may_not_be_opened_is_left_out_and_named_with_the_reason(library: Any) -> None:
    def handle(fake: Any, name: str, index: Any, out: Any) -> int:
        return NO_PERMISSION if index.value == 0 else FUNCTIONS[name](fake, name, index, out) or 0

    library.functions["nvmlDeviceGetHandleByIndex_v2"] = handle
    reading = Driver(pynvml).read()
    assert [(gpu.index, gpu.uuid, values(gpu)["up"]) for gpu in reading.gpus] == [(1, "GPU-1", 1)]
    assert [(gpu.index, gpu.values) for gpu in reading.hidden] == [(0, [])]
    assert reading.hidden[0].unsupported["nvmlDeviceGetHandleByIndex"].startswith("no permission to open it")


def test_gpus_none_of_which_may_be_opened_are_an_error(library: Any) -> None:
    library.status["nvmlDeviceGetHandleByIndex_v2"] = NO_PERMISSION
    reading = Driver(pynvml).read()
    assert reading.reason == "no_permission"
    assert "/dev/nvidia" in reading.error


@pytest.mark.parametrize("function", ["nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetTemperature"])
def test_a_lost_gpu_has_a_reason(library: Any, function: str) -> None:
    library.status[function] = GPU_IS_LOST
    why = Driver(pynvml).read().gpus[0].unsupported
    assert why == {"up": "gpu_is_lost: it does not answer; see dmesg for NVRM and Xid"}


def test_a_gpu_that_is_quarantined_or_has_no_name_has_a_reason(library: Any) -> None:
    library.status["nvmlDeviceGetUUID", 1] = NO_PERMISSION
    first, second = Driver(pynvml).read(quarantined=[0]).gpus
    assert "hung" in first.unsupported["up"]
    assert "UUID" in second.unsupported["up"]


def test_a_name_that_the_driver_did_not_know_at_first_is_asked_for_until_it_does(library: Any) -> None:
    driver = Driver(pynvml)
    library.status["nvmlDeviceGetName"] = UNKNOWN
    assert driver.read().gpus[0].info["name"] == ""
    del library.status["nvmlDeviceGetName"]
    assert [driver.read().gpus[0].info["name"] for _ in range(2)] == ["NVIDIA H100 80GB HBM3"] * 2
    library.names = b"another"
    assert driver.read().gpus[0].info["name"] == "NVIDIA H100 80GB HBM3"
