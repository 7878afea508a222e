"""Charts as SVG: lines over time, heatmaps and state timelines."""

from __future__ import annotations

import math
import time
from html import escape
from typing import TYPE_CHECKING

from grafana.rendering.style import color, format_value, mapped_text, series_styles

if TYPE_CHECKING:
    from collections.abc import Iterator

    from grafana.rendering.queries import Board, DashboardQueries, Line
    from grafana.rendering.style import SeriesStyle

LEFT, BOTTOM, TOP = 58, 18, 6
TURBO = (
    "#30123b",
    "#4145ab",
    "#4675ed",
    "#39a2fc",
    "#1bcfd4",
    "#24eca6",
    "#61fc6c",
    "#a4fc3c",
    "#d1e834",
    "#f3c63a",
    "#fe9b2d",
    "#f36315",
    "#d93806",
    "#b11901",
    "#7a0403",
)
SMALLEST = 1e-12
MAX_NAMES = 24

Points = list[tuple[float, float]]


class Coordinates:
    """The coordinates of a chart.

    Args:
        width: Width in pixels, with the axes.
        height: Height in pixels, with the axes.
        times: Unix times of the left and the right edge.
        values: Values of the lower and the upper edge.
        log: True for a logarithmic axis of values.
    """

    def __init__(
        self, width: float, height: float, times: tuple[float, float], values: tuple[float, float], *, log: bool
    ) -> None:
        self.width, self.height, self.log = width, height, log
        self._times = times
        self._low, self._high = (math.log10(item) for item in values) if log else values

    def x(self, at: float) -> float:
        """Return the horizontal position of a time, in pixels."""
        start, end = self._times
        return LEFT + (self.width - LEFT - 4) * (at - start) / (end - start)

    def y(self, value: float) -> float:
        """Return the vertical position of a value, in pixels."""
        place = math.log10(max(value, SMALLEST)) if self.log else value
        return self.height - BOTTOM - (self.height - BOTTOM - TOP) * (place - self._low) / (self._high - self._low)

    def ticks(self) -> list[float]:
        """Return the values of the grid lines."""
        if self.log:
            parts = (1, 2, 5) if self._high - self._low < 2 else (1,)
            powers = range(math.floor(self._low), math.floor(self._high) + 1)
            tens = [part * 10.0**power for power in powers for part in parts]
            return [item for item in tens if self._low <= math.log10(item) <= self._high]
        rough = (self._high - self._low) / 4
        size = 10 ** math.floor(math.log10(rough))
        step = size * next(item for item in (1, 2, 2.5, 5, 10) if item * size >= rough * 0.999)
        first = math.ceil(self._low / step - 1e-9)
        return [step * number for number in range(first, math.floor(self._high / step + 1e-9) + 1)]

    def axes(self, unit: str) -> Iterator[str]:
        """Yield the grid lines with their values, and the time axis."""
        for value in self.ticks():
            y = self.y(value)
            yield f'<line x1="{LEFT}" x2="{self.width - 4}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>'
            yield f'<text x="{LEFT - 6}" y="{y + 3:.1f}" text-anchor="end">{format_value(value, unit)}</text>'
        yield from self.clock()

    def clock(self) -> Iterator[str]:
        """Yield the labels of the time axis."""
        start, end = self._times
        step = next(
            item for item in (10, 30, 60, 120, 300, 600, 1800, 3600, 1e9) if (end - start) / item <= self.width / 90
        )
        at = math.ceil(start / step) * step
        while at < end:
            if self.x(at) > self.width - 28:
                break
            yield f'<text x="{self.x(at):.1f}" y="{self.height - 4}" text-anchor="middle">{time.strftime("%H:%M:%S", time.gmtime(at))}</text>'
            at += step


def chart(panel: Board, results: DashboardQueries, lines: list[Line], width: float, height: float) -> str:
    """Return lines over time with their legend."""
    lines = [line for line in lines if any(math.isfinite(value) for _, value in line.points)]
    styles = series_styles(panel, lines)
    custom = panel["fieldConfig"]["defaults"].get("custom", {})
    if custom.get("stacking", {}).get("mode") == "normal":
        lines = _stacked(lines)
    names = _legend(lines, styles)
    coordinates = _coordinates(panel, results, lines, width, height - (22 if names else 0))
    unit = styles[0].unit if styles else "none"
    parts = [*coordinates.axes(unit), *_levels(panel, coordinates)]
    by_name = {line.name: line for line in lines}
    for line, style in reversed(list(zip(lines, styles, strict=True))):
        base = by_name.get(style.below) if style.below else None
        parts += _line(coordinates, line.points, base.points if base else None, style, results.step)
    return f'<svg width="{width}" height="{coordinates.height}">{"".join(parts)}</svg>{names}'


def heatmap(panel: Board, results: DashboardQueries, lines: list[Line], width: float, height: float) -> str:
    """Return the buckets of a histogram over time; larger rates are brighter."""
    rows = sorted(((float(line.labels["le"]), dict(line.points)) for line in lines), key=lambda row: row[0])
    counts: list[tuple[float, dict[float, float]]] = []
    before: dict[float, float] = {}
    for bound, points in rows:
        rates = {at: max(0.0, value - before.get(at, 0.0)) for at, value in points.items()}
        counts.append((bound, rates))
        before = points
    counts = [item for item in counts if any(value > 0 for value in item[1].values())] or counts[:1]
    maximum = max((value for _, rates in counts for value in rates.values()), default=1.0) or 1.0
    coordinates = Coordinates(width, height, (results.start, results.end), (0, len(counts)), log=False)
    cell_width = coordinates.x(results.start + results.step) - coordinates.x(results.start)
    parts = []
    for number, (bound, rates) in enumerate(counts):
        top, low = coordinates.y(number + 1), coordinates.y(number)
        name = "more" if math.isinf(bound) else format_value(bound, panel["fieldConfig"]["defaults"]["unit"])
        parts.append(f'<text x="{LEFT - 6}" y="{top + 4:.1f}" text-anchor="end">{name}</text>')
        for at, value in rates.items():
            if value > 0:
                shade = TURBO[min(len(TURBO) - 1, int(len(TURBO) * math.sqrt(value / maximum)))]
                parts.append(
                    f'<rect x="{coordinates.x(at):.1f}" y="{top:.1f}" width="{cell_width + 0.4:.1f}" height="{low - top - 1:.1f}" fill="{shade}"/>'
                )
    return f'<svg width="{width}" height="{height}">{"".join(parts)}{"".join(coordinates.clock())}</svg>'


def timeline(panel: Board, results: DashboardQueries, lines: list[Line], width: float, height: float) -> str:
    """Return a timeline with item row per series, in the colors of its values."""
    coordinates = Coordinates(width, height, (results.start, results.end), (0, max(1, len(lines))), log=False)
    label_width = 6.2 * max((len(line.name) for line in lines), default=0) + 10
    shift = min(max(LEFT, label_width), width * 0.42)
    scale = (width - shift - 4) / (width - LEFT - 4)
    parts = []
    for number, (line, style) in enumerate(zip(lines, series_styles(panel, lines), strict=True)):
        top, low = coordinates.y(len(lines) - number), coordinates.y(len(lines) - number - 1)
        parts.append(
            f'<text x="{shift - 6:.0f}" y="{(top + low) / 2 + 3:.1f}" text-anchor="end">{escape(line.name)}</text>'
        )
        for at, value in line.points:
            mapped = mapped_text(value, style.mappings)
            shade = mapped[1] if mapped else style.color
            left = shift + (coordinates.x(at) - LEFT) * scale
            thickness = min(26.0, low - top - 3)
            parts.append(
                f'<rect x="{left:.1f}" y="{(top + low - thickness) / 2:.1f}" width="{(width - shift) * results.step / (results.end - results.start) + 0.5:.1f}" height="{thickness:.1f}" fill="{shade}" opacity=".85"/>'
            )
    return f'<svg width="{width}" height="{height}">{"".join(parts)}</svg>'


def _coordinates(
    panel: Board, results: DashboardQueries, lines: list[Line], width: float, height: float
) -> Coordinates:
    defaults = panel["fieldConfig"]["defaults"]
    log = defaults.get("custom", {}).get("scaleDistribution", {}).get("type") == "log"
    values = [value for line in lines for _, value in line.points if math.isfinite(value) and (value > 0 or not log)]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if log:
        return Coordinates(width, height, (results.start, results.end), (low / 1.3, high * 1.3), log=True)
    low = defaults.get("min", low if low > 0.6 * high else min(low, 0.0))
    high = max(defaults.get("max", high), low)
    high = high or 1.0  # all values are 0
    margin = 0 if "max" in defaults else 0.06 * (high - low)
    if high == low:
        low, high = 0.9 * low, 1.1 * high
    return Coordinates(width, height, (results.start, results.end), (low, high + margin), log=False)


def _line(
    coordinates: Coordinates, points: Points, base: Points | None, style: SeriesStyle, step: float
) -> Iterator[str]:
    """Yield a line and the filled area below it, with gaps where values are missing."""
    floor = dict(base or [])
    for piece in _pieces(points, step):
        line_points = " ".join(f"{coordinates.x(at):.1f},{coordinates.y(value):.1f}" for at, value in piece)
        if style.fill:
            base_points = " ".join(
                f"{coordinates.x(at):.1f},{coordinates.y(floor[at]) if at in floor else coordinates.height - BOTTOM:.1f}"
                for at, _ in reversed(piece)
            )
            yield f'<polygon points="{line_points} {base_points}" fill="{style.color}" opacity="{style.fill:.2f}"/>'
        if style.width:
            yield f'<polyline points="{line_points}" fill="none" stroke="{style.color}" stroke-width="{style.width}"/>'


def _pieces(points: Points, step: float) -> Iterator[Points]:
    piece: Points = []
    for at, value in points:
        if piece and (at - piece[-1][0] > 1.5 * step or not math.isfinite(value)):
            yield piece
            piece = []
        if math.isfinite(value):
            piece.append((at, value))
    if piece:
        yield piece


def _stacked(lines: list[Line]) -> list[Line]:
    sums: dict[float, float] = {}
    stacked = []
    for line in lines:
        points = []
        for at, value in line.points:
            sums[at] = sums.get(at, 0.0) + (value if math.isfinite(value) else 0.0)
            points.append((at, sums[at]))
        stacked.append(line._replace(points=points))
    return stacked


def _levels(panel: Board, coordinates: Coordinates) -> Iterator[str]:
    """Yield the visible thresholds as dashed lines."""
    defaults = panel["fieldConfig"]["defaults"]
    if defaults.get("custom", {}).get("thresholdsStyle", {}).get("mode", "off") == "off":
        return
    for item in defaults["thresholds"]["steps"]:
        if item["value"] is not None and TOP <= (y := coordinates.y(item["value"])) <= coordinates.height - BOTTOM:
            yield f'<line x1="{LEFT}" x2="{coordinates.width - 4}" y1="{y:.1f}" y2="{y:.1f}" stroke="{color(item["color"])}" stroke-dasharray="8 6" opacity=".7"/>'


def _legend(lines: list[Line], styles: list[SeriesStyle]) -> str:
    colors = {line.name: style.color for line, style in zip(lines, styles, strict=True) if line.name}
    spans = [
        f'<span><i style="background:{shade}"></i>{escape(name)}</span>'
        for name, shade in list(colors.items())[:MAX_NAMES]
    ]
    return f'<div class="legend">{"".join(spans)}</div>' if spans else ""
