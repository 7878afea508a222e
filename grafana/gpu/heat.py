"""Power, temperature and clocks: what slows a GPU down."""

from __future__ import annotations

from grafana.board import Row
from grafana.gpu.queries import CHOSEN, GPU, by_gpu, each, growth, rate, total
from grafana.panels import PLAIN, Query, above, bars, below, lines

from trackside_daemon.alerts.rules.builtin.gpu import COUNTED, SLOWDOWN
from trackside_daemon.alerts.settings import ThresholdsSection

LIMITS = ThresholdsSection()
JOULES_A_KWH = 3_600_000
LIMITED = "trackside_gpu_clock_limited_seconds_total"
CORE = each('trackside_gpu_temperature_celsius{GPU, sensor="gpu"}')
MARGIN = each(f"trackside_gpu_thermal_margin_celsius{{GPU, {SLOWDOWN[0].promql()}}}")
THRESHOLD = each(f"trackside_gpu_temperature_threshold_celsius{{GPU, {SLOWDOWN[0].promql()}}}")
TWO = {"width": 12, "least": 0}


def rows() -> list[Row]:
    """The cause above what it causes."""
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
            "What each GPU draws. One that draws far less than the others of its run waits for them, or is kept down.",
            "watt",
            watts,
            least=0,
        ),
        lines(
            "Power of all chosen GPUs",
            "What they draw together, and what they may. A limit below the boards' own was set by somebody.",
            "watt",
            Query(total(watts), "drawn"),
            Query(total(each(limit % "enforced")), "limit"),
            Query(total(each(limit % "default")), "limit of the boards"),
            width=8,
            least=0,
        ),
        bars(
            "Energy by node",
            "What the chosen GPUs used in the time that is shown; the twenty nodes with the most. By run it is on Fleet.",
            "kwatth",
            Query(f"topk(20, sum by (instance) ({energy} {CHOSEN}) / {JOULES_A_KWH})", "{{instance}}", instant=True),
            width=8,
            levels=[PLAIN],
        ),
    ]


def _temperature() -> list[object]:
    return [
        by_gpu(
            "Temperature of the GPU",
            "One above its neighbours is its fan or airflow, all are the room. The line is GpuHot's for GPUs that do not tell "
            "when they slow down; for the others the margin on the right counts.",
            "celsius",
            CORE,
            levels=above(LIMITS.gpu_hot_celsius),
        ),
        by_gpu(
            "Temperature of the memory",
            "Of boards that have the sensor; some degrees above the GPU's is usual.",
            "celsius",
            each('trackside_gpu_temperature_celsius{GPU, sensor="memory"}'),
        ),
        by_gpu(
            "Degrees until it slows down",
            "What is left until the GPU lowers its clocks. Below the line for a minute it is GpuHot: look at the inlet air and "
            "the fans.",
            "celsius",
            f"({MARGIN} or {THRESHOLD} - on ({GPU}) {CORE})",
            levels=below(LIMITS.gpu_hot_margin_celsius),
        ),
    ]


def _clocks() -> list[object]:
    return [
        by_gpu(
            "Clock of the SMs",
            "One below its neighbours slows its whole run. Without work it falls by itself.",
            "hertz",
            each('trackside_gpu_clock_hertz{GPU, domain="sm"}'),
            **TWO,
        ),
        by_gpu(
            "Kept down by the hardware",
            "Share of time in which heat or a power brake kept the clocks down, never a setting. Above the line it is "
            "GpuThrottled: look at the cooling and the power supplies.",
            "percentunit",
            each(rate(LIMITED, f", {COUNTED[0].promql()}")),
            levels=above(LIMITS.gpu_throttled_ratio),
            most=1,
            **TWO,
        ),
        by_gpu(
            "At the power limit",
            "Share of time with clocks lowered for the power limit. Busy GPUs are there often; above the line for ten minutes "
            "it is GpuPowerCapped, which is only information.",
            "percentunit",
            each(rate(LIMITED, ', reason="sw_power_cap"')),
            levels=above(LIMITS.gpu_power_capped_ratio, "blue"),
            most=1,
            **TWO,
        ),
        lines(
            "Clocks limited, by reason",
            "Share of time in which each reason kept the clocks down, a mean of the chosen GPUs. Reasons overlap: do not add "
            "them. The panels beside say which GPU.",
            "percentunit",
            Query(f"avg by (reason) ({rate(LIMITED)} {CHOSEN})", "{{reason}}"),
            **TWO,
        ),
    ]
