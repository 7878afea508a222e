"""Panels about power, temperature and clocks."""

from __future__ import annotations

from grafana.board import Row
from grafana.gpu.queries import GPU, SELECTED, by_gpu, each, growth, rate, total
from grafana.panels import PLAIN, Query, above, bars, below, lines

from trackside_daemon.alerts.rules.builtin.gpu import COUNTED, SLOWDOWN
from trackside_daemon.alerts.settings import ThresholdsSection

LIMITS = ThresholdsSection()
JOULES_PER_KWH = 3_600_000
LIMITED = "trackside_gpu_clock_limited_seconds_total"
CORE = each('trackside_gpu_temperature_celsius{GPU, sensor="gpu"}')
MARGIN = each(f"trackside_gpu_thermal_margin_celsius{{GPU, {SLOWDOWN[0].promql()}}}")
THRESHOLD = each(f"trackside_gpu_temperature_threshold_celsius{{GPU, {SLOWDOWN[0].promql()}}}")
TWO = {"width": 12, "minimum": 0}


def rows() -> list[Row]:
    """Return the rows of power, temperature and clocks."""
    return [
        Row("Power and energy", *_power(), collapsed=True),
        Row("Temperature", *_temperature(), collapsed=True),
        Row("Clocks and throttling", *_clocks(), collapsed=True),
    ]


def _power() -> list[object]:
    watts = each("trackside_gpu_power_watts{GPU}")
    limit = 'trackside_gpu_power_limit_watts{GPU, limit="%s"}'
    energy = each(growth("trackside_gpu_energy_joules_total", window="$__range"))
    return [
        by_gpu(
            "Power",
            "Power of each GPU. A GPU far below the others of its run waits for them, or is throttled.",
            "watt",
            watts,
            minimum=0,
        ),
        lines(
            "Power of all selected GPUs",
            "Power and power limits over all selected GPUs. If the limit is below that of the boards, somebody has lowered it.",
            "watt",
            Query(total(watts), "power"),
            Query(total(each(limit % "enforced")), "limit"),
            Query(total(each(limit % "default")), "default limit of the boards"),
            width=8,
            minimum=0,
        ),
        bars(
            "Energy by node",
            "Energy of the selected GPUs in the displayed time, for the twenty nodes with the most. Fleet shows the energy by run.",
            "kwatth",
            Query(
                f"topk(20, sum by (instance) ({energy} {SELECTED}) / {JOULES_PER_KWH})", "{{instance}}", instant=True
            ),
            width=8,
            levels=[PLAIN],
        ),
    ]


def _temperature() -> list[object]:
    return [
        by_gpu(
            "GPU temperature",
            "If one GPU is above its neighbors, check its fan or airflow; if all are hot, check the room. The line is the threshold of "
            "GpuHot for GPUs that do not report when they slow down. For the others, see the margin on the right.",
            "celsius",
            CORE,
            levels=above(LIMITS.gpu_hot_celsius),
        ),
        by_gpu(
            "Memory temperature",
            "For boards with this sensor. Some degrees above the GPU temperature is usual.",
            "celsius",
            each('trackside_gpu_temperature_celsius{GPU, sensor="memory"}'),
        ),
        by_gpu(
            "Margin to slowdown",
            "Degrees until the GPU lowers its clocks. GpuHot fires after a minute below the line: check the inlet air and "
            "the fans.",
            "celsius",
            f"({MARGIN} or {THRESHOLD} - on ({GPU}) {CORE})",
            levels=below(LIMITS.gpu_hot_margin_celsius),
        ),
    ]


def _clocks() -> list[object]:
    return [
        by_gpu(
            "SM clock",
            "A GPU below its neighbors slows its whole run. Without work the clock falls.",
            "hertz",
            each('trackside_gpu_clock_hertz{GPU, domain="sm"}'),
            **TWO,
        ),
        by_gpu(
            "Throttled by hardware",
            "Share of time in which heat or a power brake lowered the clocks; settings are not included. GpuThrottled fires above the "
            "line: check the cooling and the power supplies.",
            "percentunit",
            each(rate(LIMITED, f", {COUNTED[0].promql()}")),
            levels=above(LIMITS.gpu_throttled_ratio),
            maximum=1,
            **TWO,
        ),
        by_gpu(
            "At the power limit",
            "Share of time with clocks lowered for the power limit. This is common for busy GPUs. GpuPowerCapped, an informational "
            "alert, fires after ten minutes above the line.",
            "percentunit",
            each(rate(LIMITED, ', reason="sw_power_cap"')),
            levels=above(LIMITS.gpu_power_capped_ratio, "blue"),
            maximum=1,
            **TWO,
        ),
        lines(
            "Clock limits by reason",
            "Share of time in which each reason limited the clocks, as a mean over the selected GPUs. Reasons overlap, so do not add "
            "them. The other panels show the GPUs.",
            "percentunit",
            Query(f"avg by (reason) ({rate(LIMITED)} {SELECTED})", "{{reason}}"),
            **TWO,
        ),
    ]
