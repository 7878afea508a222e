"""How values and series look: units, mappings of values to texts, colours, overrides."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from grafana.pictures.answers import Board, Line

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


class Look(NamedTuple):
    """Of one series.

    Attributes:
        color: Of its line.
        width: Of its line, in pixels.
        fill: Opacity of what is below it, 0 to 1.
        below: The name of the series that it is filled down to, instead of the axis.
        unit: Of its values.
        mappings: Of its values to texts and colours.
    """

    color: str
    width: float
    fill: float
    below: str
    unit: str
    mappings: list[Any]


def looks(panel: Board, lines: list[Line]) -> list[Look]:
    """Of each series of a panel."""
    defaults = panel["fieldConfig"]["defaults"]
    custom = defaults.get("custom", {})
    found = []
    for number, line in enumerate(lines):
        set_ = {"custom.lineWidth": custom.get("lineWidth", 1), "custom.fillOpacity": custom.get("fillOpacity", 0)}
        set_ |= overridden(panel, line.name, line.query)
        chosen = set_.get("color", {}).get("fixedColor")
        found.append(
            Look(
                color(chosen) if chosen else PALETTE[number % len(PALETTE)],
                set_["custom.lineWidth"],
                set_["custom.fillOpacity"] / 100,
                set_.get("custom.fillBelowTo", ""),
                set_.get("unit", defaults.get("unit", "none")),
                set_.get("mappings", defaults.get("mappings", [])),
            )
        )
    return found


def overridden(panel: Board, name: str, query: str) -> dict[str, Any]:
    """What overrides set for a series or column, by the names of the properties."""
    found: dict[str, Any] = {}
    for one in panel["fieldConfig"].get("overrides", []):
        how, what = one["matcher"]["id"], one["matcher"]["options"]
        if (how == "byName" and what == name) or (how == "byFrameRefID" and what == query):
            found |= {each["id"]: each["value"] for each in one["properties"]}
    return found


def color(name: str) -> str:
    """A colour of Grafana's as CSS has it."""
    return _COLORS.get(name.rpartition("-")[2], name)


def meaning(value: float, mappings: list[Any]) -> tuple[str, str] | None:
    """The text and colour that a value is mapped to."""
    for one in mappings:
        options = one["options"]
        if one["type"] == "value" and (hit := options.get(f"{value:g}")):
            return hit.get("text", ""), color(hit.get("color") or "text")
        if one["type"] == "range" and (options.get("from") or 0) <= value <= (options.get("to") or float("inf")):
            return options["result"].get("text", ""), color(options["result"].get("color") or "text")
    return None


def level(value: float, panel: Board) -> str:
    """The colour that the thresholds give a value."""
    steps = panel["fieldConfig"]["defaults"].get("thresholds", {}).get("steps", [])
    reached = [one["color"] for one in steps if one["value"] is None or value >= one["value"]]
    return color(reached[-1] if reached else "text")


def written(value: float, unit: str, decimals: int | None = None) -> str:
    """A value as Grafana writes it, more or less."""
    if value != value:  # noqa: PLR0124  that is what NaN is
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
    for least, size, name in ((86400, 86400, "d"), (3600, 3600, "h"), (60, 60, "min"), (1, 1, "s"), (1e-3, 1e-3, "ms")):
        if abs(seconds) >= least:
            return f"{seconds / size:.3g} {name}"
    return f"{seconds * 1e6:.3g} µs" if seconds else "0 s"
