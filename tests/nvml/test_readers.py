"""Readers through the real pynvml: base units, unsupported calls, absent values."""

from __future__ import annotations

from typing import Any

import pynvml
import pytest
from nvml.answers import SINT, UINT, ULL, Refused, target
from nvml.first import of, read

from trackside_daemon.model.families.gpu import FAMILIES
from trackside_daemon.nvml.worker.driver import Driver

NOT_SUPPORTED, NO_PERMISSION, GPU_IS_LOST, RESET_REQUIRED = 3, 4, 15, 16
ABSURD = 0xFFFFFFFF
OLD = "the driver is older than the function"
UNSUPPORTED = "this GPU or its mode does not support it"


@pytest.fixture(autouse=True)
def one_gpu(library: Any) -> None:
    library.count = 1


def test_engines_are_ratios_and_read_only_on_request(library: Any) -> None:
    library.values |= {
        "nvmlDeviceGetEncoderUtilization": (25, 167_000),
        "nvmlDeviceGetDecoderUtilization": (50, 167_000),
        "nvmlDeviceGetJpgUtilization": (0, 167_000),
    }
    gpu = read("engines")
    assert of(gpu, "engine_") == {
        "engine_utilization_ratio:encoder": 0.25,
        "engine_utilization_ratio:decoder": 0.5,
        "engine_utilization_ratio:jpeg": 0,
    }
    assert gpu.unsupported["engine_utilization_ratio{ofa}"] == OLD
    assert not of(read(), "engine_")


def test_bar1_is_in_bytes_and_read_only_on_request(library: Any) -> None:
    library.values["nvmlDeviceGetBAR1MemoryInfo"] = {"bar1Total": 4096, "bar1Used": 1024}
    assert of(read("bar1"), "bar1_") == {"bar1_memory_bytes": 4096, "bar1_memory_used_bytes": 1024}
    assert not of(read(), "bar1_")


def test_a_driver_without_the_second_version_reports_memory_by_the_first(library: Any) -> None:
    library.missing.add("nvmlDeviceGetMemoryInfo_v2")
    library.values["nvmlDeviceGetMemoryInfo"] = {"total": 80_000, "free": 19_000, "used": 61_000}
    driver = Driver(pynvml)
    driver.read()
    reading = driver.read()
    assert of(reading.gpus[0], "memory_") == {
        "memory_controller_utilization_ratio": 0.41,
        "memory_bytes": 80_000,
        "memory_used_bytes": 61_000,
        "memory_free_bytes": 19_000,
    }
    assert reading.gpus[0].unsupported["memory_reserved_bytes"] == OLD
    assert reading.calls["nvmlDeviceGetMemoryInfo"] == {"function_not_found": 1, "success": 2}


def test_a_memory_that_cannot_be_read_now_is_not_read_by_the_first_version(library: Any) -> None:
    library.status["nvmlDeviceGetMemoryInfo_v2"] = RESET_REQUIRED
    library.values["nvmlDeviceGetMemoryInfo"] = {"total": 80_000, "free": 19_000, "used": 61_000}
    assert set(of(read(), "memory_")) == {"memory_controller_utilization_ratio"}


def test_a_gpu_of_unified_memory_has_no_memory_of_its_own(library: Any) -> None:
    library.status["nvmlDeviceGetMemoryInfo_v2"] = NOT_SUPPORTED
    gpu = read()
    assert set(of(gpu, "memory_")) == {"memory_controller_utilization_ratio"}
    assert gpu.unsupported["memory"] == UNSUPPORTED


def test_thresholds_are_reported_as_far_as_there_are_any(library: Any) -> None:
    library.values |= {("nvmlDeviceGetTemperatureThreshold", 0): 96, ("nvmlDeviceGetTemperatureThreshold", 3): 85}
    assert of(read(), "temperature_threshold") == {
        "temperature_threshold_celsius:shutdown": 96,
        "temperature_threshold_celsius:gpu_max": 85,
    }


def test_margins_are_the_degrees_left_until_each_threshold(library: Any) -> None:
    library.values["nvmlDeviceGetMarginTemperature"] = {"marginTemperature": 45}
    library.fields |= {(193, 0): (SINT, -8), (194, 0): (SINT, -2), (196, 0): (SINT, 0)}
    gpu = read()
    assert of(gpu, "thermal_") == {
        "thermal_margin_celsius:shutdown": 53,
        "thermal_margin_celsius:slowdown": 47,
        "thermal_margin_celsius:gpu_max": 45,
    }
    assert gpu.unsupported["thermal_margin_celsius{memory_max} from field 195"] == UNSUPPORTED


def test_a_gpu_without_fans_has_no_fan_speed(library: Any) -> None:
    library.values["nvmlDeviceGetNumFans"] = 0
    gpu = read()
    assert not of(gpu, "fan_")
    assert "fan" not in gpu.unsupported


def test_power_of_the_driver_older_than_the_field_comes_from_the_function(library: Any) -> None:
    assert of(read(), "power_watts") == {"power_watts": 412.5}


def test_power_comes_from_the_function_where_the_library_knows_no_fields(library: Any) -> None:
    library.missing.add("nvmlDeviceGetFieldValues")
    gpu = read()
    assert of(gpu, "power_watts") == {"power_watts": 412.5}
    assert gpu.unsupported["fields"] == OLD


def test_power_of_the_field_costs_no_call_of_the_function(library: Any) -> None:
    library.fields[186, 0] = (UINT, 398_250)
    reading = Driver(pynvml).read()
    assert of(reading.gpus[0], "power_watts") == {"power_watts": 398.25}
    assert "nvmlDeviceGetPowerUsage" not in reading.calls


@pytest.mark.parametrize(
    ("state", "reported"), [(0, {"performance_state": 0}), (8, {"performance_state": 8}), (32, {})]
)
def test_an_unknown_performance_state_is_absent_and_no_fault(
    library: Any, state: int, reported: dict[str, float]
) -> None:
    library.values["nvmlDeviceGetPerformanceState"] = state
    reading = Driver(pynvml).read()
    assert of(reading.gpus[0], "performance_state") == reported
    assert not reading.rejected


def test_only_reasons_that_the_gpu_supports_are_reported(library: Any) -> None:
    library.values |= {
        "nvmlDeviceGetSupportedClocksEventReasons": 0x1 | 0x4 | 0x80,
        "nvmlDeviceGetCurrentClocksEventReasons": 0x4 | 0x20,
    }
    assert of(read(), "clock_limit_active") == {
        "clock_limit_active:gpu_idle": 0,
        "clock_limit_active:sw_power_cap": 1,
        "clock_limit_active:hw_power_brake": 0,
    }


def test_reasons_have_older_names_in_older_drivers(library: Any) -> None:
    library.values |= {
        "nvmlDeviceGetSupportedClocksThrottleReasons": 0x40,
        "nvmlDeviceGetCurrentClocksThrottleReasons": 0x40,
    }
    assert of(read(), "clock_limit_active") == {"clock_limit_active:hw_thermal": 1}


def test_the_sram_threshold_is_a_flag(library: Any) -> None:
    library.values["nvmlDeviceGetSramEccErrorStatus"] = {"bThresholdExceeded": 1}
    assert of(read(), "sram_") == {"sram_threshold_exceeded": 1}


def test_calls_that_mig_does_not_support_cost_no_others(library: Any) -> None:
    library.values |= {
        "nvmlDeviceGetRemappedRows": Refused(NOT_SUPPORTED),
        "nvmlDeviceGetRowRemapperHistogram": {"max": 640},
    }
    library.status["nvmlDeviceGetUtilizationRates"] = NOT_SUPPORTED
    gpu = read()
    assert {"utilization", "remapped-rows"} <= set(gpu.unsupported)
    assert of(gpu, "row_remap_banks")["row_remap_banks:max"] == 640
    assert of(gpu, "temperature_celsius") == {"temperature_celsius:gpu": 61}


def test_retired_pages_are_counted_by_cause(library: Any) -> None:
    retired = {0: 2, 1: 0}

    def pages(fake: Any, name: str, handle: Any, cause: Any, *rest: Any) -> None:
        count, _ = rest
        target(count).value = retired[cause.value]

    library.functions["nvmlDeviceGetRetiredPages"] = pages
    library.values["nvmlDeviceGetRetiredPagesPendingStatus"] = 1
    assert of(read(), "retired_") == {
        "retired_pages_total:single_bit": 2,
        "retired_pages_total:double_bit": 0,
        "retired_pages_pending": 1,
    }


def test_persistence_is_a_flag(library: Any) -> None:
    library.values["nvmlDeviceGetPersistenceMode"] = 1
    assert of(read(), "persistence_") == {"persistence_mode": 1}


def test_a_gpu_that_requires_a_reset_retains_what_it_still_answers(library: Any) -> None:
    for function in ("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetClockInfo"):
        library.status[function] = RESET_REQUIRED
    library.fields |= {(230, 0): (UINT, 1), (82, 0): Refused(RESET_REQUIRED)}
    gpu = read()
    assert of(gpu, "up") == {"up": 1}
    assert of(gpu, "temperature_celsius") == {"temperature_celsius:gpu": 61}
    assert of(gpu, "recovery_action") == {"recovery_action": 1}
    assert not {"utilization", "memory"} & set(gpu.unsupported)


@pytest.mark.parametrize(
    "function", ["nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetClockInfo", "nvmlDeviceGetNvLinkState"]
)
def test_a_gpu_that_is_lost_amid_several_questions_is_down(library: Any, function: str) -> None:
    library.fields[91, 0] = (UINT, 2)
    library.values[function] = Refused(GPU_IS_LOST)
    assert of(read(), "") == {"up": 0}


def test_a_refused_question_is_not_retried(library: Any) -> None:
    library.values |= {("nvmlDeviceGetClockInfo", domain): 1000 for domain in (0, 1, 2)}
    driver = Driver(pynvml)
    driver.read()
    assert driver.read().calls["nvmlDeviceGetClockInfo"] == {"success": 6, "not_supported": 1}


def test_a_missing_permission_is_the_reported_reason(library: Any) -> None:
    library.values["nvmlDeviceGetPersistenceMode"] = Refused(NO_PERMISSION)
    assert read().unsupported["persistence"].startswith("no permission; run the daemon as root")


@pytest.mark.parametrize("function", ["nvmlDeviceGetPcieReplayCounter", "nvmlDeviceGetCurrPcieLinkGeneration"])
def test_a_sentinel_of_a_function_is_no_measurement(library: Any, function: str) -> None:
    library.values[function] = ABSURD
    reading = Driver(pynvml).read()
    assert not of(reading.gpus[0], "pcie_")
    assert sum(reading.rejected.values()) == 1


@pytest.mark.parametrize(
    "field",
    [(74, 0), (138, 0xFFFFFFFF), (202, 0xFFFFFFFF), (173, 0), (38, 0), (197, 0), (185, 0)],
)
def test_a_sentinel_of_a_field_is_no_measurement(library: Any, field: tuple[int, int]) -> None:
    library.fields[field] = (ULL, 2**64 - 1)
    reading = Driver(pynvml).read()
    assert sum(reading.rejected.values()) == 1


ABSURD_VALUES = [
    ("temperature_threshold_celsius", 255.0),
    ("temperature_celsius", 255.0),
    ("power_watts", 4_294_967.295),
    ("power_limit_watts", 4_294_967.295),
    ("utilization_ratio", 1.01),
    ("sm_active_ratio", 42_949_672.95),
    ("memory_bytes", 2.0**64 - 1),
    ("clock_hertz", 4_294_967_295e6),
    ("energy_joules_total", (2**64 - 1) / 1000),
    ("clock_limited_seconds_total", (2**64 - 1) / 1e9),
    ("pcie_link_generation", 4_294_967_295.0),
    ("nvlink_errors_total", 2.0**64 - 1),
    ("ecc_errors_total", 4_294_967_295.0),
    ("nvlink_transmit_bytes_total", 2.0**64 - 1),
]


@pytest.mark.parametrize(("family", "value"), ABSURD_VALUES)
def test_placeholders_of_drivers_for_unknown_values_are_beyond_the_bounds(family: str, value: float) -> None:
    assert not FAMILIES[family].low <= value <= FAMILIES[family].high
