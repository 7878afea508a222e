"""Columns of ``nvidia-smi --query-gpu``, the family of /metrics with the same quantity, and the permitted difference."""

from __future__ import annotations

from typing import NamedTuple

MIB, MHZ, PERCENT = 2.0**20, 1e6, 0.01


class Column(NamedTuple):
    """A column that a family also has.

    Attributes:
        name: The column.
        family: The metric's name without ``trackside_gpu_``.
        label: The value of the family's own label; empty if it has none.
        scale: The ratio of the family's value to the column's.
        near: The permitted difference, in the family's unit: the column's rounding, and the noise between two readings.
        share: The permitted difference as a share of the value, which is added to *near*.
    """

    name: str
    family: str
    label: str = ""
    scale: float = 1.0
    near: float = 0.0
    share: float = 0.0


def _memory(column: str, family: str, near: float) -> Column:
    return Column(f"memory.{column}", family, scale=MIB, near=near * MIB)


def _power(column: str, label: str) -> Column:
    return Column(column, "power_limit_watts", label, near=0.01)


def _clock(column: str, label: str, near: float) -> Column:
    return Column(f"clocks.{column}", "clock_hertz", label, scale=MHZ, near=near * MHZ)


def _fastest(column: str, label: str) -> Column:
    return Column(f"clocks.max.{column}", "clock_max_hertz", label, scale=MHZ)


def _limit(column: str, label: str) -> Column:
    return Column(f"clocks_event_reasons.{column}", "clock_limit_active", label)


def _limited(column: str, label: str) -> Column:
    # Microseconds in nvidia-smi; both readings may be some tenths of a second apart.
    return Column(f"clocks_event_reasons_counters.{column}", "clock_limited_seconds_total", label, scale=1e-6, near=0.5)


def _engine(column: str, label: str) -> Column:
    return Column(f"utilization.{column}", "engine_utilization_ratio", label, scale=PERCENT, near=0.03)


# Both readings of a quantity that changes are some tenths of a second apart: the utilisation is a mean over up to a second,
# power and clocks follow the load at once, temperatures within seconds.
COLUMNS = (
    _memory("total", "memory_bytes", 1),
    _memory("reserved", "memory_reserved_bytes", 1),
    _memory("used", "memory_used_bytes", 8),
    _memory("free", "memory_free_bytes", 8),
    Column("utilization.gpu", "utilization_ratio", scale=PERCENT, near=0.05),
    Column("utilization.memory", "memory_controller_utilization_ratio", scale=PERCENT, near=0.05),
    *(_engine(*pair) for pair in (("encoder", "encoder"), ("decoder", "decoder"), ("jpeg", "jpeg"), ("ofa", "ofa"))),
    Column("temperature.gpu", "temperature_celsius", "gpu", near=2.0),
    Column("temperature.memory", "temperature_celsius", "memory", near=2.0),
    Column("temperature.gpu.tlimit", "thermal_margin_celsius", "gpu_max", near=2.0),
    Column("fan.speed", "fan_speed_ratio", "0", scale=PERCENT, near=0.03),
    Column("power.draw.instant", "power_watts", near=5.0, share=0.1),
    Column("power.draw.average", "power_average_watts", near=5.0, share=0.05),
    *(_power(*pair) for pair in (("enforced.power.limit", "enforced"), ("power.default_limit", "default"))),
    *(_power(*pair) for pair in (("power.min_limit", "min"), ("power.max_limit", "max"), ("power.limit", "requested"))),
    *(
        _clock(*domain)
        for domain in (("gr", "graphics", 120), ("sm", "sm", 120), ("mem", "memory", 10), ("video", "video", 120))
    ),
    *(_fastest(*pair) for pair in (("gr", "graphics"), ("sm", "sm"), ("mem", "memory"))),
    Column("pstate", "performance_state"),
    _limit("gpu_idle", "gpu_idle"),
    _limit("applications_clocks_setting", "applications_clocks"),
    _limit("sw_power_cap", "sw_power_cap"),
    _limit("hw_slowdown", "hw_slowdown"),
    _limit("hw_thermal_slowdown", "hw_thermal"),
    _limit("hw_power_brake_slowdown", "hw_power_brake"),
    _limit("sw_thermal_slowdown", "sw_thermal"),
    _limit("sync_boost", "sync_boost"),
    _limited("sw_power_cap", "sw_power_cap"),
    _limited("sync_boost", "sync_boost"),
    _limited("sw_thermal_slowdown", "sw_thermal"),
    _limited("hw_thermal_slowdown", "hw_thermal"),
    _limited("hw_power_brake_slowdown", "hw_power_brake"),
    Column("pcie.link.gen.gpucurrent", "pcie_link_generation"),
    Column("pcie.link.gen.max", "pcie_link_max_generation"),
    Column("pcie.link.width.current", "pcie_link_width_lanes"),
    Column("pcie.link.width.max", "pcie_link_max_width_lanes"),
    Column("ecc.errors.corrected.aggregate.total", "ecc_errors_total", "corrected"),
    Column("ecc.errors.uncorrected.aggregate.total", "ecc_errors_total", "uncorrected"),
    Column("ecc.errors.corrected.volatile.total", "ecc_volatile_errors_total", "corrected"),
    Column("ecc.errors.uncorrected.volatile.total", "ecc_volatile_errors_total", "uncorrected"),
    Column("remapped_rows.correctable", "remapped_rows_total", "correctable"),
    Column("remapped_rows.uncorrectable", "remapped_rows_total", "uncorrectable"),
    Column("remapped_rows.pending", "row_remap_pending"),
    Column("remapped_rows.failure", "row_remap_failed"),
    *(
        Column(f"remapped_rows.histogram.{left}", "row_remap_banks", left)
        for left in ("max", "high", "partial", "low", "none")
    ),
    Column("ecc.errors.uncorrected.aggregate.sram.thresholdExceeded", "sram_threshold_exceeded"),
    Column("gpu_recovery_action", "recovery_action"),
    Column("fabric.state", "fabric_state"),
    Column("retired_pages.single_bit_ecc.count", "retired_pages_total", "single_bit"),
    Column("retired_pages.double_bit.count", "retired_pages_total", "double_bit"),
    Column("retired_pages.pending", "retired_pages_pending"),
    Column("persistence_mode", "persistence_mode"),
    Column("mig.mode.current", "mig_mode"),
)

# Columns with a text, and the label of `trackside_gpu_info` or `trackside_nvidia_driver_info` that has the same.
TEXTS = {
    "index": "gpu",
    "name": "name",
    "serial": "serial",
    "vbios_version": "vbios_version",
    "pci.bus_id": "pci_bus_id",
    "compute_cap": "compute_capability",
    "driver_version": "driver_version",
}

WORDS = {
    "yes": 1.0,
    "no": 0.0,
    "enabled": 1.0,
    "disabled": 0.0,
    "active": 1.0,
    "not active": 0.0,
    "none": 0.0,
    "not supported": 0.0,
    "not started": 1.0,
    "in progress": 2.0,
    "completed": 3.0,
}


def number(text: str) -> float | None:
    """Return the number that a cell means: also Enabled, Not Active, Yes and P0; None if it is none."""
    lower = text.lower()
    if lower in WORDS:
        return WORDS[lower]
    try:
        return float(lower.removeprefix("p"))
    except ValueError:
        return None
