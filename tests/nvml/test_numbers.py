"""Numbers of fields and metrics, compared with the names in pynvml."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pynvml
import pytest
from nvml.first import of, read

from trackside_daemon.nvml.readers import clocks, fields, gpm, health, links, mig, thermal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trackside_daemon.nvml.readers.fields import Field
    from trackside_daemon.nvml.readers.gpm import GpmMetric

FIELDS: dict[str, str | tuple[str, ...]] = {
    "power_watts": "POWER_INSTANT",
    "power_average_watts": "POWER_AVERAGE",
    "module_power_watts": "POWER_INSTANT",
    "temperature_celsius{memory}": "MEMORY_TEMP",
    "mma_stall_ratio": "MMA_STALL_PERCENT",
    "clock_limited_seconds_total{sw_power_cap}": "PERF_POLICY_POWER",
    "clock_limited_seconds_total{thermal}": "PERF_POLICY_THERMAL",
    "clock_limited_seconds_total{sync_boost}": "PERF_POLICY_SYNC_BOOST",
    "clock_limited_seconds_total{board_limit}": "PERF_POLICY_BOARD_LIMIT",
    "clock_limited_seconds_total{low_utilization}": "PERF_POLICY_LOW_UTILIZATION",
    "clock_limited_seconds_total{reliability}": "PERF_POLICY_RELIABILITY",
    "clock_limited_seconds_total{sw_thermal}": "CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN",
    "clock_limited_seconds_total{hw_thermal}": "CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN",
    "clock_limited_seconds_total{hw_power_brake}": "CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN",
    "pcie_transmit_bytes_total": "PCIE_COUNT_TX_BYTES",
    "pcie_receive_bytes_total": "PCIE_COUNT_RX_BYTES",
    "nvlink_transmit_bytes_total": ("NVLINK_THROUGHPUT_DATA_TX", "NVLINK_COUNT_XMIT_BYTES"),
    "nvlink_receive_bytes_total": ("NVLINK_THROUGHPUT_DATA_RX", "NVLINK_COUNT_RCV_BYTES"),
    "nvlink_link_transmit_bytes_total": ("NVLINK_THROUGHPUT_DATA_TX", "NVLINK_COUNT_XMIT_BYTES"),
    "nvlink_link_receive_bytes_total": ("NVLINK_THROUGHPUT_DATA_RX", "NVLINK_COUNT_RCV_BYTES"),
    "recovery_action": "GET_GPU_RECOVERY_ACTION",
    "power_limit_watts{min}": "POWER_MIN_LIMIT",
    "power_limit_watts{max}": "POWER_MAX_LIMIT",
    "power_limit_watts{default}": "POWER_DEFAULT_LIMIT",
    "power_limit_watts{requested}": "POWER_REQUESTED_LIMIT",
    "pcie_errors_total{l0_to_recovery}": "PCIE_L0_TO_RECOVERY_COUNTER",
    "pcie_errors_total{correctable}": "PCIE_COUNT_CORRECTABLE_ERRORS",
    "pcie_errors_total{nak_received}": "PCIE_COUNT_NAKS_RECEIVED",
    "pcie_errors_total{receiver}": "PCIE_COUNT_RECEIVER_ERROR",
    "pcie_errors_total{bad_tlp}": "PCIE_COUNT_BAD_TLP",
    "pcie_errors_total{nak_sent}": "PCIE_COUNT_NAKS_SENT",
    "pcie_errors_total{bad_dllp}": "PCIE_COUNT_BAD_DLLP",
    "pcie_errors_total{non_fatal}": "PCIE_COUNT_NON_FATAL_ERROR",
    "pcie_errors_total{fatal}": "PCIE_COUNT_FATAL_ERROR",
    "pcie_errors_total{unsupported_request}": "PCIE_COUNT_UNSUPPORTED_REQ",
    "pcie_errors_total{lcrc}": "PCIE_COUNT_LCRC_ERROR",
    "pcie_errors_total{lane}": "PCIE_COUNT_LANE_ERROR",
    "nvlink_errors_total{crc_flit}": "NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
    "nvlink_errors_total{crc_data}": "NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",
    "nvlink_errors_total{crc}": "NVLINK_ERROR_DL_CRC",
    "nvlink_errors_total{replay}": ("NVLINK_REPLAY_ERROR_COUNT_TOTAL", "NVLINK_ERROR_DL_REPLAY"),
    "nvlink_errors_total{recovery}": ("NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "NVLINK_ERROR_DL_RECOVERY"),
    "nvlink_errors_total{ecc}": "NVLINK_ECC_DATA_ERROR_COUNT_TOTAL",
    "nvlink_errors_total{malformed}": "NVLINK_COUNT_MALFORMED_PACKET_ERRORS",
    "nvlink_errors_total{buffer_overrun}": "NVLINK_COUNT_BUFFER_OVERRUN_ERRORS",
    "nvlink_errors_total{receive}": "NVLINK_COUNT_RCV_ERRORS",
    "nvlink_errors_total{remote}": "NVLINK_COUNT_RCV_REMOTE_ERRORS",
    "nvlink_errors_total{general}": "NVLINK_COUNT_RCV_GENERAL_ERRORS",
    "nvlink_errors_total{integrity}": "NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS",
    "nvlink_errors_total{discard}": "NVLINK_COUNT_XMIT_DISCARDS",
    "nvlink_errors_total{recovery_failed}": "NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS",
    "nvlink_errors_total{effective}": "NVLINK_COUNT_EFFECTIVE_ERRORS",
    "nvlink_errors_total{symbol}": "NVLINK_COUNT_SYMBOL_ERRORS",
    "nvlink_links": "NVLINK_LINK_COUNT",
    "nvlink_speed_bytes_per_second": ("NVLINK_GET_SPEED", "NVLINK_SPEED_MBPS_COMMON"),
    "c2c_links": "C2C_LINK_COUNT",
    "c2c_link_up": "C2C_LINK_GET_STATUS",
    "c2c_errors_total{interrupt}": "C2C_LINK_ERROR_INTR",
    "c2c_errors_total{replay}": "C2C_LINK_ERROR_REPLAY",
    "c2c_errors_total{replay_b2b}": "C2C_LINK_ERROR_REPLAY_B2B",
    "thermal_margin_celsius{shutdown}": "TEMPERATURE_SHUTDOWN_TLIMIT",
    "thermal_margin_celsius{slowdown}": "TEMPERATURE_SLOWDOWN_TLIMIT",
    "thermal_margin_celsius{memory_max}": "TEMPERATURE_MEM_MAX_TLIMIT",
    "thermal_margin_celsius{gpu_max}": "TEMPERATURE_GPU_MAX_TLIMIT",
}
"""Field of each series, without ``NVML_FI_DEV_``."""

METRICS = {
    "graphics_engine_active_ratio": "GRAPHICS_UTIL",
    "sm_active_ratio": "SM_UTIL",
    "sm_occupancy_ratio": "SM_OCCUPANCY",
    "tensor_active_ratio": "ANY_TENSOR_UTIL",
    "dram_active_ratio": "DRAM_BW_UTIL",
    "pipe_active_ratio{hmma}": "HMMA_TENSOR_UTIL",
    "pipe_active_ratio{imma}": "IMMA_TENSOR_UTIL",
    "pipe_active_ratio{dfma}": "DFMA_TENSOR_UTIL",
    "pipe_active_ratio{dmma}": "DMMA_TENSOR_UTIL",
    "pipe_active_ratio{fp64}": "FP64_UTIL",
    "pipe_active_ratio{fp32}": "FP32_UTIL",
    "pipe_active_ratio{fp16}": "FP16_UTIL",
    "pipe_active_ratio{integer}": "INTEGER_UTIL",
    "pcie_transmit_bytes_per_second": "PCIE_TX_PER_SEC",
    "pcie_receive_bytes_per_second": "PCIE_RX_PER_SEC",
    "sm_cycles_total": "SM_CYCLES_ELAPSED",
    "sm_active_cycles_total": "SM_CYCLES_ACTIVE",
    "tensor_active_cycles_total": "MMA_CYCLES_ACTIVE",
    "mig_graphics_engine_active_ratio": "GRAPHICS_UTIL",
    "mig_sm_active_ratio": "SM_UTIL",
    "mig_sm_occupancy_ratio": "SM_OCCUPANCY",
    "mig_tensor_active_ratio": "ANY_TENSOR_UTIL",
}
"""GPM metric of each series, without ``NVML_GPM_METRIC_``."""

ALL_FIELDS: tuple[Field, ...] = (
    *(*fields.FIELDS, *fields.SLOW_FIELDS, *thermal.MARGINS, *links.HOPPER_ERRORS, *links.C2C_ERRORS),
    *(field for direction in links.LINK_BYTES for field in direction),
    *(links.NVLINKS, links.SPEED, links.COMMON_SPEED, links.C2C_LINKS, links.C2C_UP),
)
ALL_METRICS: tuple[GpmMetric, ...] = (*gpm.RATIOS, *gpm.RATES, *gpm.CYCLES, *mig.RATIOS)

COMPLETED = 3
"""State of a GPU that has joined the fabric."""

REASONS = {
    "gpu_idle": "GpuIdle",
    "applications_clocks": "ApplicationsClocksSetting",
    "sw_power_cap": "SwPowerCap",
    "hw_slowdown": "HwSlowdown",
    "sync_boost": "SyncBoost",
    "sw_thermal": "SwThermalSlowdown",
    "hw_thermal": "HwThermalSlowdown",
    "hw_power_brake": "HwPowerBrakeSlowdown",
    "display": "DisplayClockSetting",
}


def numbers(prefix: str, names: str | tuple[str, ...]) -> set[int]:
    return {getattr(pynvml, prefix + name) for name in ((names,) if isinstance(names, str) else names)}


@pytest.mark.parametrize("series", FIELDS)
def test_a_series_comes_from_the_field_of_its_name(series: str) -> None:
    assert {field.number for field in ALL_FIELDS if field.series == series} == numbers("NVML_FI_DEV_", FIELDS[series])


@pytest.mark.parametrize("series", METRICS)
def test_a_series_comes_from_the_metric_of_its_name(series: str) -> None:
    found = {metric.number for metric in ALL_METRICS if metric.name == series}
    assert found == numbers("NVML_GPM_METRIC_", METRICS[series])


def test_no_field_and_no_metric_is_without_a_name() -> None:
    assert {field.series for field in ALL_FIELDS} == set(FIELDS)
    assert {metric.name for metric in ALL_METRICS} == set(METRICS)


def test_the_total_of_all_links_is_preferred_where_a_gpu_has_both() -> None:
    older = {"NVLINK_THROUGHPUT_DATA_TX", "NVLINK_THROUGHPUT_DATA_RX"}
    twice = [field.number for field in fields.FIELDS if field.series.startswith("nvlink_")]
    assert set(twice[:2]) == numbers("NVML_FI_DEV_", tuple(older))


@pytest.mark.parametrize("reason", REASONS)
def test_each_reason_has_its_bit(reason: str) -> None:
    assert 1 << clocks.REASONS.index(reason) == getattr(pynvml, f"nvmlClocksEventReason{REASONS[reason]}")
    assert set(clocks.REASONS) == set(REASONS)


def counted(names: Iterable[str]) -> list[int]:
    return [getattr(pynvml, name) for name in names]


def test_names_by_index_are_in_the_drivers_order() -> None:
    in_order = {
        clocks.DOMAINS: [f"NVML_CLOCK_{name}" for name in ("GRAPHICS", "SM", "MEM", "VIDEO")],
        thermal.THRESHOLDS: [
            f"NVML_TEMPERATURE_THRESHOLD_{name}" for name in ("SHUTDOWN", "SLOWDOWN", "MEM_MAX", "GPU_MAX")
        ],
        health.KINDS: [f"NVML_MEMORY_ERROR_TYPE_{name}" for name in ("CORRECTED", "UNCORRECTED")],
        health.COUNTERS: ["NVML_VOLATILE_ECC", "NVML_AGGREGATE_ECC"],
        health.RETIRED: [
            f"NVML_PAGE_RETIREMENT_CAUSE_{name}" for name in ("MULTIPLE_SINGLE_BIT_ECC_ERRORS", "DOUBLE_BIT_ECC_ERROR")
        ],
    }
    for ours, theirs in in_order.items():
        assert counted(theirs) == list(range(len(ours))), ours
    assert clocks.DOMAINS == ("graphics", "sm", "memory", "video")
    assert thermal.THRESHOLDS == ("shutdown", "slowdown", "memory_max", "gpu_max")
    assert health.KINDS == ("corrected", "uncorrected")
    assert health.COUNTERS == ("ecc_volatile_errors_total", "ecc_errors_total")
    assert health.RETIRED == ("single_bit", "double_bit")


@pytest.mark.parametrize(
    ("condition", "word", "true", "false"),
    [
        ("degraded_bandwidth", "DEGRADED_BW", "TRUE", "FALSE"),
        ("route_recovery", "ROUTE_RECOVERY", "TRUE", "FALSE"),
        ("route_unhealthy", "ROUTE_UNHEALTHY", "TRUE", "FALSE"),
        ("access_timeout_recovery", "ACCESS_TIMEOUT_RECOVERY", "TRUE", "FALSE"),
        ("incorrect_configuration", "INCORRECT_CONFIGURATION", "INCORRECT_SYSGUID", "NONE"),
        ("incorrect_configuration", "INCORRECT_CONFIGURATION", "GPU_STATE_INVALID", "NONE"),
    ],
)
def test_each_condition_of_the_fabric_has_its_bits(
    library: Any, condition: str, word: str, true: str, false: str
) -> None:
    prefix = "NVML_GPU_FABRIC_HEALTH_MASK_"
    shift = getattr(pynvml, f"{prefix}SHIFT_{word}")
    for name, is_so in ((true, True), (false, False)):
        health = getattr(pynvml, f"{prefix}{word}_{name}") << shift
        library.values["nvmlDeviceGetGpuFabricInfoV"] = {"state": COMPLETED, "healthMask": health}
        problems = {"fabric_problem:registration_failed": 0, f"fabric_problem:{condition}": is_so}
        assert of(read(), "fabric_problem") == problems
