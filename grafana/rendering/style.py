"""Units, value mappings, colors and overrides of series, as in Grafana."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from grafana.rendering.queries import Board, Line

PALETTE = ("#73bf69", "#f2cc0c", "#8ab8ff", "#ff780a", "#f2495c", "#5794f2", "#b877d9", "#37872d", "#fade2a", "#ca95e5")
_COLORS = {
    "green": "#73bf69",
    "yellow": "#fade2a",
    "orange": "#ff9830",
    "red": "#f2495c",
    "blue": "#5794f2",
    "purple": "#b877d9",
    "text": "#d5d6dd",
    "transparent": "#5a5d66",
    "gray": "#808490",
}
_STEPS = {
    "bytes": (1024, ("B", "KiB", "MiB", "GiB", "TiB")),
    "Bps": (1000, ("B/s", "kB/s", "MB/s", "GB/s", "TB/s")),
    "binBps": (1024, ("B/s", "KiB/s", "MiB/s", "GiB/s", "TiB/s")),
    "hertz": (1000, ("Hz", "kHz", "MHz", "GHz")),
    "watt": (1000, ("W", "kW", "MW")),
    "joule": (1000, ("J", "kJ", "MJ", "GJ")),
    "kwatth": (1000, ("kWh", "MWh", "GWh")),
    "short": (1000, ("", " K", " Mil", " Bil")),
}
_SIMPLE = {"celsius": " °C", "percent": "%", "ops": " ops/s", "reqps": " req/s", "mps": " msg/s", "h": " h"}


class SeriesStyle(NamedTuple):
    """The style of a series.

    Attributes:
        color: Color of the line.
        width: Width of the line, in pixels.
        fill: Opacity of the area below it, 0 to 1.
        below: The series down to which the area is filled; empty for the axis.
        unit: Unit of its values.
        mappings: Texts and colors of its values.
    """

    color: str
    width: float
    fill: float
    below: str
    unit: str
    mappings: list[Any]


def series_styles(panel: Board, lines: list[Line]) -> list[SeriesStyle]:
    """Return the style of each series of a panel."""
    defaults = panel["fieldConfig"]["defaults"]
    custom = defaults.get("custom", {})
    result = []
    for number, line in enumerate(lines):
        properties = {
            "custom.lineWidth": custom.get("lineWidth", 1),
            "custom.fillOpacity": custom.get("fillOpacity", 0),
        }
        properties |= overrides_of(panel, line.name, line.query)
        fixed_color = properties.get("color", {}).get("fixedColor")
        result.append(
            SeriesStyle(
                color(fixed_color) if fixed_color else PALETTE[number % len(PALETTE)],
                properties["custom.lineWidth"],
                properties["custom.fillOpacity"] / 100,
                properties.get("custom.fillBelowTo", ""),
                properties.get("unit", defaults.get("unit", "none")),
                properties.get("mappings", defaults.get("mappings", [])),
            )
        )
    return result


def overrides_of(panel: Board, name: str, query: str) -> dict[str, Any]:
    """Return the overrides_of properties of a series or column by their names."""
    result: dict[str, Any] = {}
    for entry in panel["fieldConfig"].get("overrides", []):
        matcher, target = entry["matcher"]["id"], entry["matcher"]["options"]
        if (matcher == "byName" and target == name) or (matcher == "byFrameRefID" and target == query):
            result |= {each["id"]: each["value"] for each in entry["properties"]}
    return result


def color(name: str) -> str:
    """Return a color of Grafana for CSS."""
    return _COLORS.get(name.rpartition("-")[2], name)


def mapped_text(value: float, mappings: list[Any]) -> tuple[str, str] | None:
    """Return the text and color that a value is mapped to; None without a mapping."""
    for entry in mappings:
        options = entry["options"]
        if entry["type"] == "value" and (mapped := options.get(f"{value:g}")):
            return mapped.get("text", ""), color(mapped.get("color") or "text")
        if entry["type"] == "range" and (options.get("from") or 0) <= value <= (options.get("to") or float("inf")):
            return options["result"].get("text", ""), color(options["result"].get("color") or "text")
    return None


def threshold_color(value: float, panel: Board) -> str:
    """Return the color of a value by the thresholds."""
    steps = panel["fieldConfig"]["defaults"].get("thresholds", {}).get("steps", [])
    reached = [entry["color"] for entry in steps if entry["value"] is None or value >= entry["value"]]
    return color(reached[-1] if reached else "text")


def format_value(value: float, unit: str, decimals: int | None = None) -> str:
    """Return a value formatted roughly as in Grafana."""
    if value != value:  # noqa: PLR0124  only NaN differs from itself
        return "NaN"
    if unit == "percentunit":
        return f"{100 * value:.{1 if decimals is None else decimals}f}%"
    if unit in ("s", "dtdurations", "clocks"):
        return _duration(value)
    if unit.startswith("dateTime"):
        ago = time.time() - value / 1000
        return (
            f"{_duration(ago)} ago"
            if unit == "dateTimeFromNow"
            else time.strftime("%F %T", time.localtime(value / 1000))
        )
    if unit in _STEPS and not (unit == "short" and abs(value) < 1000):
        base, names = _STEPS[unit]
        power = 0
        while abs(value) >= base and power < len(names) - 1:
            value, power = value / base, power + 1
        return f"{value:.3g}{'' if unit == 'short' else ' '}{names[power]}"
    text = (
        f"{value:.{decimals}f}"
        if decimals is not None
        else f"{value:.0f}"
        if float(value).is_integer() and abs(value) < 1e7
        else f"{value:.3g}"
    )
    return text + _SIMPLE.get(unit, "")


def _duration(seconds: float) -> str:
    for minimum, size, name in (
        (86400, 86400, "d"),
        (3600, 3600, "h"),
        (60, 60, "min"),
        (1, 1, "s"),
        (1e-3, 1e-3, "ms"),
    ):
        if abs(seconds) >= minimum:
            return f"{seconds / size:.3g} {name}"
    return f"{seconds * 1e6:.3g} µs" if seconds else "0 s"
