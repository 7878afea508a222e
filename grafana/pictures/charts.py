"""Charts as SVG: lines over time, heatmaps, and what was so when."""

from __future__ import annotations

import math
import time
from html import escape
from typing import TYPE_CHECKING

from grafana.pictures.look import color, looks, meaning, written

if TYPE_CHECKING:
    from collections.abc import Iterator

    from grafana.pictures.answers import Asked, Board, Line
    from grafana.pictures.look import Look

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
FEW, MOST = 1e-12, 24

Points = list[tuple[float, float]]


class Plane:
    """Times and values to pixels.

    Args:
        width: In pixels, with the axes.
        height: The same.
        times: The left and the right edge.
        values: The lower and the upper edge.
        log: Whether the axis of values is logarithmic.
    """

    def __init__(
        self, width: float, height: float, times: tuple[float, float], values: tuple[float, float], *, log: bool
    ) -> None:
        self.width, self.height, self.log = width, height, log
        self._times = times
        self._low, self._high = (math.log10(one) for one in values) if log else values

    def x(self, at: float) -> float:
        """Of a time."""
        start, end = self._times
        return LEFT + (self.width - LEFT - 4) * (at - start) / (end - start)

    def y(self, value: float) -> float:
        """Of a value."""
        place = math.log10(max(value, FEW)) if self.log else value
        return self.height - BOTTOM - (self.height - BOTTOM - TOP) * (place - self._low) / (self._high - self._low)

    def ticks(self) -> list[float]:
        """Values worth a line across."""
        if self.log:
            parts = (1, 2, 5) if self._high - self._low < 2 else (1,)
            powers = range(math.floor(self._low), math.floor(self._high) + 1)
            tens = [part * 10.0**power for power in powers for part in parts]
            return [one for one in tens if self._low <= math.log10(one) <= self._high]
        rough = (self._high - self._low) / 4
        size = 10 ** math.floor(math.log10(rough))
        step = size * next(one for one in (1, 2, 2.5, 5, 10) if one * size >= rough * 0.999)
        first = math.ceil(self._low / step - 1e-9)
        return [step * number for number in range(first, math.floor(self._high / step + 1e-9) + 1)]

    def axes(self, unit: str) -> Iterator[str]:
        """Lines across with their values, and times below."""
        for value in self.ticks():
            y = self.y(value)
            yield f'<line x1="{LEFT}" x2="{self.width - 4}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>'
            yield f'<text x="{LEFT - 6}" y="{y + 3:.1f}" text-anchor="end">{written(value, unit)}</text>'
        yield from self.clock()

    def clock(self) -> Iterator[str]:
        """Times below."""
        start, end = self._times
        step = next(
            one for one in (10, 30, 60, 120, 300, 600, 1800, 3600, 1e9) if (end - start) / one <= self.width / 90
        )
        at = math.ceil(start / step) * step
        while at < end:
            if self.x(at) > self.width - 28:
                break
            yield f'<text x="{self.x(at):.1f}" y="{self.height - 4}" text-anchor="middle">{time.strftime("%H:%M:%S", time.gmtime(at))}</text>'
            at += step


def chart(panel: Board, asked: Asked, lines: list[Line], width: float, height: float) -> str:
    """Lines over time, and their names below."""
    lines = [line for line in lines if any(math.isfinite(value) for _, value in line.points)]
    shown = looks(panel, lines)
    custom = panel["fieldConfig"]["defaults"].get("custom", {})
    if custom.get("stacking", {}).get("mode") == "normal":
        lines = _stacked(lines)
    names = _names(lines, shown)
    plane = _plane(panel, asked, lines, width, height - (22 if names else 0))
    unit = shown[0].unit if shown else "none"
    parts = [*plane.axes(unit), *_levels(panel, plane)]
    by_name = {line.name: line for line in lines}
    for line, look in reversed(list(zip(lines, shown, strict=True))):
        base = by_name.get(look.below) if look.below else None
        parts += _drawn(plane, line.points, base.points if base else None, look, asked.step)
    return f'<svg width="{width}" height="{plane.height}">{"".join(parts)}</svg>{names}'


def heatmap(panel: Board, asked: Asked, lines: list[Line], width: float, height: float) -> str:
    """Buckets of a histogram over time: the more there are, the brighter."""
    rows = sorted(((float(line.labels["le"]), dict(line.points)) for line in lines), key=lambda row: row[0])
    counts: list[tuple[float, dict[float, float]]] = []
    before: dict[float, float] = {}
    for bound, points in rows:
        own = {at: max(0.0, value - before.get(at, 0.0)) for at, value in points.items()}
        counts.append((bound, own))
        before = points
    counts = [one for one in counts if any(value > 0 for value in one[1].values())] or counts[:1]
    most = max((value for _, own in counts for value in own.values()), default=1.0) or 1.0
    plane = Plane(width, height, (asked.start, asked.end), (0, len(counts)), log=False)
    across = plane.x(asked.start + asked.step) - plane.x(asked.start)
    parts = []
    for number, (bound, own) in enumerate(counts):
        top, low = plane.y(number + 1), plane.y(number)
        name = "more" if math.isinf(bound) else written(bound, panel["fieldConfig"]["defaults"]["unit"])
        parts.append(f'<text x="{LEFT - 6}" y="{top + 4:.1f}" text-anchor="end">{name}</text>')
        for at, value in own.items():
            if value > 0:
                shade = TURBO[min(len(TURBO) - 1, int(len(TURBO) * math.sqrt(value / most)))]
                parts.append(
                    f'<rect x="{plane.x(at):.1f}" y="{top:.1f}" width="{across + 0.4:.1f}" height="{low - top - 1:.1f}" fill="{shade}"/>'
                )
    return f'<svg width="{width}" height="{height}">{"".join(parts)}{"".join(plane.clock())}</svg>'


def timeline(panel: Board, asked: Asked, lines: list[Line], width: float, height: float) -> str:
    """What was so when: a row a series, coloured by what its values mean."""
    plane = Plane(width, height, (asked.start, asked.end), (0, max(1, len(lines))), log=False)
    wide = 6.2 * max((len(line.name) for line in lines), default=0) + 10
    shift = min(max(LEFT, wide), width * 0.42)
    scale = (width - shift - 4) / (width - LEFT - 4)
    parts = []
    for number, (line, look) in enumerate(zip(lines, looks(panel, lines), strict=True)):
        top, low = plane.y(len(lines) - number), plane.y(len(lines) - number - 1)
        parts.append(
            f'<text x="{shift - 6:.0f}" y="{(top + low) / 2 + 3:.1f}" text-anchor="end">{escape(line.name)}</text>'
        )
        for at, value in line.points:
            said = meaning(value, look.mappings)
            shade = said[1] if said else look.color
            left = shift + (plane.x(at) - LEFT) * scale
            thick = min(26.0, low - top - 3)
            parts.append(
                f'<rect x="{left:.1f}" y="{(top + low - thick) / 2:.1f}" width="{(width - shift) * asked.step / (asked.end - asked.start) + 0.5:.1f}" height="{thick:.1f}" fill="{shade}" opacity=".85"/>'
            )
    return f'<svg width="{width}" height="{height}">{"".join(parts)}</svg>'


def _plane(panel: Board, asked: Asked, lines: list[Line], width: float, height: float) -> Plane:
    defaults = panel["fieldConfig"]["defaults"]
    log = defaults.get("custom", {}).get("scaleDistribution", {}).get("type") == "log"
    values = [value for line in lines for _, value in line.points if math.isfinite(value) and (value > 0 or not log)]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if log:
        return Plane(width, height, (asked.start, asked.end), (low / 1.3, high * 1.3), log=True)
    low = defaults.get("min", low if low > 0.6 * high else min(low, 0.0))
    high = max(defaults.get("max", high), low)
    high = high or 1.0  # nothing happened
    margin = 0 if "max" in defaults else 0.06 * (high - low)
    if high == low:
        low, high = 0.9 * low, 1.1 * high
    return Plane(width, height, (asked.start, asked.end), (low, high + margin), log=False)


def _drawn(plane: Plane, points: Points, base: Points | None, look: Look, step: float) -> Iterator[str]:
    """A line, in pieces where values are missing, and what is filled below it."""
    floor = dict(base or [])
    for piece in _pieces(points, step):
        way = " ".join(f"{plane.x(at):.1f},{plane.y(value):.1f}" for at, value in piece)
        if look.fill:
            back = " ".join(
                f"{plane.x(at):.1f},{plane.y(floor[at]) if at in floor else plane.height - BOTTOM:.1f}"
                for at, _ in reversed(piece)
            )
            yield f'<polygon points="{way} {back}" fill="{look.color}" opacity="{look.fill:.2f}"/>'
        if look.width:
            yield f'<polyline points="{way}" fill="none" stroke="{look.color}" stroke-width="{look.width}"/>'


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
    found = []
    for line in lines:
        points = []
        for at, value in line.points:
            sums[at] = sums.get(at, 0.0) + (value if math.isfinite(value) else 0.0)
            points.append((at, sums[at]))
        found.append(line._replace(points=points))
    return found


def _levels(panel: Board, plane: Plane) -> Iterator[str]:
    """Thresholds as dashed lines, those that are in sight."""
    defaults = panel["fieldConfig"]["defaults"]
    if defaults.get("custom", {}).get("thresholdsStyle", {}).get("mode", "off") == "off":
        return
    for one in defaults["thresholds"]["steps"]:
        if one["value"] is not None and TOP <= (y := plane.y(one["value"])) <= plane.height - BOTTOM:
            yield f'<line x1="{LEFT}" x2="{plane.width - 4}" y1="{y:.1f}" y2="{y:.1f}" stroke="{color(one["color"])}" stroke-dasharray="8 6" opacity=".7"/>'


def _names(lines: list[Line], shown: list[Look]) -> str:
    named = {line.name: look.color for line, look in zip(lines, shown, strict=True) if line.name}
    spans = [
        f'<span><i style="background:{shade}"></i>{escape(name)}</span>' for name, shade in list(named.items())[:MOST]
    ]
    return f'<div class="legend">{"".join(spans)}</div>' if spans else ""
