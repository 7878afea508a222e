"""Rules for conditions that slow a GPU down.

| alert | why this threshold |
|---|---|
| GpuHot | for a minute, within 5 degrees of the temperature at which the GPU slows itself down: by the margin that GPUs report since Ada, by the threshold that older ones report, otherwise near the 87 to 90 degrees of most boards |
| GpuThrottled | the hardware reduces the clocks for half of a minute, because of heat or power, never a setting |
| GpuPowerCapped | a busy GPU spends most of ten minutes at its power limit, so info |

A hot GPU is throttled because of the heat, so GpuHot inhibits GpuThrottled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.alerts.rules.query import Matcher, Query
from trackside_daemon.alerts.rules.rule import Rule
from trackside_daemon.model.families import gpu

if TYPE_CHECKING:
    from trackside_daemon.alerts.settings import ThresholdsSection

GPU = ("gpu", "uuid")
MINUTE = 60.0
CORE = (Matcher("sensor", "gpu"),)
SLOWDOWN = (Matcher("threshold", "slowdown"),)
# Reasons whose time drivers count. They report `hw_slowdown`, which covers both, only as a current state.
COUNTED = (Matcher("reason", "hw_thermal|hw_power_brake", "=~"),)
ACTIVE = (Matcher("reason", "hw_slowdown|hw_thermal|hw_power_brake", "=~"),)


def rules(thresholds: ThresholdsSection) -> list[Rule]:
    """Return the rules in the order of the table."""
    return [*_hot(thresholds), *_throttled(thresholds), _capped(thresholds)]


def _hot(thresholds: ThresholdsSection) -> list[Rule]:
    temperature, threshold = gpu.TEMPERATURE, gpu.TEMPERATURE_THRESHOLD
    margin = Query(gpu.THERMAL_MARGIN, SLOWDOWN, by=GPU, below=thresholds.gpu_hot_margin_celsius)
    before = Query(
        temperature,
        CORE,
        minus=Query(threshold, SLOWDOWN),
        on=GPU,
        by=GPU,
        above=-thresholds.gpu_hot_margin_celsius,
        unless=(Query(gpu.THERMAL_MARGIN, SLOWDOWN),),
    )
    fixed = Query(
        temperature,
        CORE,
        on=GPU,
        by=GPU,
        above=thresholds.gpu_hot_celsius,
        unless=(Query(gpu.THERMAL_MARGIN, SLOWDOWN), Query(threshold, SLOWDOWN)),
    )
    variants = (
        ("margin", margin, "GPU {gpu} is {value:below} the temperature at which it slows down"),
        ("threshold", before, "GPU {gpu} is {value:above} the temperature at which it slows down"),
        ("fixed", fixed, "GPU {gpu} is at {value} degrees Celsius"),
    )
    return [
        Rule("GpuHot", "warning", when, text, lasting=MINUTE, keep_firing=MINUTE, variant=variant)
        for variant, when, text in variants
    ]


def _throttled(thresholds: ThresholdsSection) -> list[Rule]:
    most = thresholds.gpu_throttled_ratio
    queries = {
        "counted": Query(gpu.CLOCK_LIMITED, COUNTED, "rate", MINUTE, by=GPU, above=most),
        "seen": Query(gpu.CLOCK_LIMIT_ACTIVE, ACTIVE, "mean", MINUTE, by=GPU, above=most),
    }
    return [
        Rule(
            "GpuThrottled",
            "warning",
            when,
            "the hardware reduced the clocks of GPU {gpu} for {value:percent} of the last {window}",
            keep_firing=MINUTE,
            variant=variant,
            inhibited_by=("GpuHot",),
        )
        for variant, when in queries.items()
    ]


def _capped(thresholds: ThresholdsSection) -> Rule:
    return Rule(
        "GpuPowerCapped",
        "info",
        Query(
            gpu.CLOCK_LIMITED,
            (Matcher("reason", "sw_power_cap"),),
            "rate",
            600.0,
            by=GPU,
            above=thresholds.gpu_power_capped_ratio,
        ),
        "GPU {gpu} was at its power limit for {value:percent} of the last {window}",
        inhibited_by=("GpuHot", "GpuThrottled"),
    )
