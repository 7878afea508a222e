"""Temperatures of a GPU, how far they are from what slows it down, and its fans."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from trackside_daemon.nvml.readers.calls import MOST, ask_all
from trackside_daemon.nvml.readers.fields import Field, ask_fields

if TYPE_CHECKING:
    from trackside_daemon.nvml.readers.unsupported import Refusals
    from trackside_daemon.nvml.reading import Value

THRESHOLDS = ("shutdown", "slowdown", "memory_max", "gpu_max")
"""As NVML counts them, from 0 in ``NVML_TEMPERATURE_THRESHOLD_...`` and from 193 in the fields."""

MARGINS = tuple(Field(193 + at, "thermal_margin_celsius", (threshold,)) for at, threshold in enumerate(THRESHOLDS))


def temperature(nvml: Any, handle: Any, _: Refusals) -> list[Value]:
    """``nvmlDeviceGetTemperature``, in degrees Celsius."""
    return [("temperature_celsius", ("gpu",), nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))]


def thresholds(nvml: Any, handle: Any, refusals: Refusals) -> list[Value]:
    """``nvmlDeviceGetTemperatureThreshold``, in degrees Celsius; before Ada."""

    def threshold(number: int) -> float:
        return float(nvml.nvmlDeviceGetTemperatureThreshold(handle, number))

    return ask_all(
        nvml,
        refusals,
        (
            ("temperature_threshold_celsius", (name,), partial(threshold, number))
            for number, name in enumerate(THRESHOLDS)
        ),
    )


def margins(nvml: Any, handle: Any, refusals: Refusals) -> list[Value]:
    """How many degrees are left until each threshold; Ada and later.

    ``nvmlDeviceGetMarginTemperature`` says how far the GPU is from its T.Limit of 0, and the fields at which T.Limit
    each threshold lies, -8 for instance; the difference is what is left.
    """
    margin = nvml.nvmlDeviceGetMarginTemperature(handle)
    return [(family, labels, margin - at) for family, labels, at in ask_fields(nvml, handle, MARGINS, refusals)]


def fans(nvml: Any, handle: Any, refusals: Refusals) -> list[Value]:
    """``nvmlDeviceGetFanSpeed_v2`` of ``nvmlDeviceGetNumFans``, in percent of the highest speed. Absent on SXM."""

    def speed(fan: int) -> float:
        return float(nvml.nvmlDeviceGetFanSpeed_v2(handle, fan) / 100)

    count = min(nvml.nvmlDeviceGetNumFans(handle), MOST)
    return ask_all(nvml, refusals, (("fan_speed_ratio", (str(fan),), partial(speed, fan)) for fan in range(count)))
