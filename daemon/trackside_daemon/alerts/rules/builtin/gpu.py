"""What slows a GPU down.

| alert | why this threshold |
|---|---|
| GpuHot | within 5 degrees of the temperature at which the GPU slows itself down, for a minute: by its own margin since Ada, by its own threshold before, else near the 87 to 90 that most boards have |
| GpuThrottled | the hardware holds the clocks down for half of a minute: heat or power, never a setting |
| GpuPowerCapped | most of ten minutes at the power limit is what a well-fed GPU does, so only info |

A hot GPU is throttled because it is hot, and one alert says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.alerts.rules.query import Matcher, Query
from trackside_daemon.alerts.rules.rule import Rule

if TYPE_CHECKING:
    from trackside_daemon.alerts.settings import ThresholdsSection

GPU = ("gpu", "uuid")
MINUTE = 60.0
CORE = (Matcher("sensor", "gpu"),)
SLOWDOWN = (Matcher("threshold", "slowdown"),)
COUNTED = (Matcher("reason", "hw_thermal|hw_power_brake", "=~"),)
"""The reasons whose time drivers count; ``hw_slowdown``, which holds either, they only tell of now."""
ACTIVE = (Matcher("reason", "hw_slowdown|hw_thermal|hw_power_brake", "=~"),)
COOL = (
    "Since {since}. Look at the inlet air, the fans and the neighbours' temperatures; it will lower its clocks, "
    "and with it every rank that waits for it."
)


def rules(thresholds: ThresholdsSection) -> list[Rule]:
    """In the order of the table."""
    return [*_hot(thresholds), *_throttled(thresholds), _capped(thresholds)]


def _hot(thresholds: ThresholdsSection) -> list[Rule]:
    temperature, threshold = "trackside_gpu_temperature_celsius", "trackside_gpu_temperature_threshold_celsius"
    margin = Query("trackside_gpu_thermal_margin_celsius", SLOWDOWN, by=GPU, below=thresholds.gpu_hot_margin_celsius)
    before = Query(
        temperature,
        CORE,
        minus=Query(threshold, SLOWDOWN),
        on=GPU,
        by=GPU,
        above=-thresholds.gpu_hot_margin_celsius,
        unless=(Query("trackside_gpu_thermal_margin_celsius", SLOWDOWN),),
    )
    fixed = Query(
        temperature,
        CORE,
        on=GPU,
        by=GPU,
        above=thresholds.gpu_hot_celsius,
        unless=(Query("trackside_gpu_thermal_margin_celsius", SLOWDOWN), Query(threshold, SLOWDOWN)),
    )
    said = (
        ("margin", margin, "GPU {gpu} is {value} degrees below the temperature at which it slows down"),
        ("threshold", before, "GPU {gpu} is {value} degrees from the temperature at which it slows down"),
        ("fixed", fixed, "GPU {gpu} has {value} degrees Celsius"),
    )
    return [
        Rule("GpuHot", "warning", when, text, COOL, lasting=MINUTE, keep_firing=MINUTE, variant=variant)
        for variant, when, text in said
    ]


def _throttled(thresholds: ThresholdsSection) -> list[Rule]:
    most = thresholds.gpu_throttled_ratio
    queries = {
        "counted": Query("trackside_gpu_clock_limited_seconds_total", COUNTED, "rate", MINUTE, by=GPU, above=most),
        "seen": Query("trackside_gpu_clock_limit_active", ACTIVE, "mean", MINUTE, by=GPU, above=most),
    }
    return [
        Rule(
            "GpuThrottled",
            "warning",
            when,
            "the hardware keeps the clocks of GPU {gpu} down for {value:percent} of the last {window}",
            "Since {since}. trackside_gpu_clock_limit_active says the reason: for hw_thermal look at the cooling, for "
            "hw_power_brake at the machine's power supplies.",
            keep_firing=MINUTE,
            variant=variant,
            because=("GpuHot",),
        )
        for variant, when in queries.items()
    ]


def _capped(thresholds: ThresholdsSection) -> Rule:
    return Rule(
        "GpuPowerCapped",
        "info",
        Query(
            "trackside_gpu_clock_limited_seconds_total",
            (Matcher("reason", "sw_power_cap"),),
            "rate",
            600.0,
            by=GPU,
            above=thresholds.gpu_power_capped_ratio,
        ),
        "GPU {gpu} was at its power limit for {value:percent} of the last {window}",
        "Since {since}. That is what a busy GPU does; where its limit was lowered, nvidia-smi -q -d POWER shows it.",
        because=("GpuHot", "GpuThrottled"),
    )
