"""Temperatures of a GPU, their margins to the thresholds, and its fans."""

from functools import partial
from typing import Any

from trackside_daemon.nvml.readers.fields import Field, read_fields
from trackside_daemon.nvml.readers.unsupported import MAX_COUNT, Unsupported, read_supported
from trackside_daemon.nvml.reading import Value

# Thresholds in NVML's order, from 0 in `NVML_TEMPERATURE_THRESHOLD_...` and from 193 in the fields.
THRESHOLDS = ("shutdown", "slowdown", "memory_max", "gpu_max")

MARGINS = tuple(Field(193 + number, "thermal_margin_celsius", (name,)) for number, name in enumerate(THRESHOLDS))


def temperature(nvml: Any, handle: Any, _: Unsupported) -> list[Value]:
    """Read ``nvmlDeviceGetTemperature``, in degrees Celsius."""
    return [("temperature_celsius", ("gpu",), nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))]


def thresholds(nvml: Any, handle: Any, unsupported: Unsupported) -> list[Value]:
    """Read ``nvmlDeviceGetTemperatureThreshold``, in degrees Celsius; before Ada."""

    def threshold(number: int) -> float:
        return float(nvml.nvmlDeviceGetTemperatureThreshold(handle, number))

    return read_supported(
        nvml,
        unsupported,
        (
            ("temperature_threshold_celsius", (name,), partial(threshold, number))
            for number, name in enumerate(THRESHOLDS)
        ),
    )


def margins(nvml: Any, handle: Any, unsupported: Unsupported) -> list[Value]:
    """Read the degrees that are left until each threshold; Ada and later.

    ``nvmlDeviceGetMarginTemperature`` is the distance of the GPU from its T.Limit of 0. The fields are the T.Limit of
    each threshold, for instance -8. The difference is the margin.
    """
    margin = nvml.nvmlDeviceGetMarginTemperature(handle)
    return [
        (family, labels, margin - limit) for family, labels, limit in read_fields(nvml, handle, MARGINS, unsupported)
    ]


def fans(nvml: Any, handle: Any, unsupported: Unsupported) -> list[Value]:
    """Read ``nvmlDeviceGetFanSpeed_v2`` of ``nvmlDeviceGetNumFans``, in percent of the highest speed; none on SXM."""

    def speed(fan: int) -> float:
        return float(nvml.nvmlDeviceGetFanSpeed_v2(handle, fan) / 100)

    count = min(nvml.nvmlDeviceGetNumFans(handle), MAX_COUNT)
    return read_supported(
        nvml, unsupported, (("fan_speed_ratio", (str(fan),), partial(speed, fan)) for fan in range(count))
    )
