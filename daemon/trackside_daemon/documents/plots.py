"""Draw a chart of a report as an SVG file, and as a PNG file with matplotlib, which has its own fonts, so that it draws text on machines without any."""

import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from trackside_daemon.model.text import cut, number

WIDTH, HEIGHT = 720, 360
LEFT, RIGHT, TOP, BOTTOM = 70, 16, 34, 40  # margins around the plot
COLORS = ("#0b68cb", "#c2410c", "#15803d", "#7e22ce", "#0e7490", "#be185d", "#854d0e", "#475569")
LEGEND_LETTERS = 60
MOST_NAME = 80  # letters of a file's name
DOTS = 200  # per inch: legible in a printed paper
SIZE_DOTS = 100  # of an inch in the units of the SVG file


class Theme(NamedTuple):
    """The colors of the paper, the text, the grid and the axes."""

    paper: str
    text: str
    grid: str
    quiet: str


LIGHT, DARK = Theme("#fff", "#1b1f24", "#d5dae0", "#59636e"), Theme("#15191e", "#e6e9ed", "#3a424b", "#9aa4af")
_COLOR = re.compile(f'="({"|".join(LIGHT)})"')  # no text has it, since quotes are escaped there


def files(name: str, chart: Mapping[str, Any], axes: Sequence[Any], *, pngs: bool) -> Iterator[tuple[str, bytes]]:
    """Yield the names and contents of the SVG and PNG files of a chart, light, and dark as ``NAME-dark``."""
    for theme, suffix in ((LIGHT, ""), (DARK, "-dark")):
        yield f"{name}{suffix}.svg", svg(chart, axes, theme).encode()
        if pngs:
            yield f"{name}{suffix}.png", png([chart], axes, theme)


def file_name(text: str) -> str:
    """Return a text as a file's name: a run may have any name, such as ``../x``, or ``-rf``, which looks like an option."""
    return re.sub(r"[^\w.=+-]+", "_", text, flags=re.ASCII).lstrip(".-_").rstrip("._")[:MOST_NAME] or "report"


def svg(chart: Mapping[str, Any], axes: Sequence[Sequence[Mapping[str, Any]]], theme: Theme = LIGHT) -> str:
    """Return a chart of `charts` over the steps as SVG; *axes* are those of each run."""
    every = [(line, axes[line["run"]][line["axis"]]["step"]) for line in chart["lines"]]
    lines = [(line["label"], _points(line, steps)) for line, steps in every]
    odd = [[steps[at] for at in line.get("nonfinite", ())] for line, steps in every]
    steps = [step for _, points in lines for step, _ in points] + [step for places in odd for step in places]
    values = [value for _, points in lines for _, value in points]
    across, up = _Scale(steps, LEFT, WIDTH - RIGHT), _Scale(values, HEIGHT - BOTTOM, TOP + 18 * (len(lines) > 1))
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    drawn = "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12" fill="#1b1f24">',
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
            f'<text x="{LEFT}" y="20" font-size="14">{escape(chart["key"])}</text>',
            *_grid(across, up),
            *(part for place, places in enumerate(odd) for part in _crosses(place, places, across)),
            *(part for place, (label, points) in enumerate(lines) for part in _line(place, points, across, up)),
            *_legend([label for label, _ in lines]),
            "</svg>\n",
        )
    )
    return _COLOR.sub(lambda found: f'="{theme[LIGHT.index(found[1])]}"', drawn)


class _Scale:
    """The place of values between two ends of the picture; without values, those from 0 to 1."""

    def __init__(self, values: Sequence[float], begin: float, end: float) -> None:
        low, high = min(values, default=0.0), max(values, default=1.0)
        pad = 0.0 if high > low else abs(high) / 10 or 1.0
        self.low, self.high, self.begin, self.end = low - pad, high + pad, begin, end

    def __call__(self, value: float) -> float:
        # Halves: the difference of the largest floats is not finite.
        share = (value / 2 - self.low / 2) / (self.high / 2 - self.low / 2)
        return round(self.begin + share * (self.end - self.begin), 1)

    def ticks(self, most: int) -> Iterator[float]:
        """Yield round values: multiples of 1, 2 or 5 times a power of ten."""
        raw = (self.high / 2 - self.low / 2) / most * 2
        power = 10.0 ** math.floor(math.log10(raw)) if math.isfinite(raw) and raw > 1e-300 else 0.0
        pace = next((factor * power for factor in (1, 2, 5, 10) if factor * power >= raw), 0.0)
        if not pace:
            return
        for count in range(math.ceil(self.low / pace), math.floor(self.high / pace) + 1):
            yield count * pace


def _points(line: Mapping[str, Any], steps: Sequence[int]) -> list[tuple[int, float]]:
    return [(step, value) for step, value in zip(steps, line["last"], strict=True) if value is not None]


def _grid(across: _Scale, up: _Scale) -> Iterator[str]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    for tick in up.ticks(8):
        yield f'<path d="M{LEFT} {up(tick)}H{right}" stroke="#d5dae0"/>'
        yield f'<text x="{LEFT - 8}" y="{up(tick) + 4}" text-anchor="end">{number(float(f"{tick:.10g}"))}</text>'
    for tick in across.ticks(8):
        yield f'<path d="M{across(tick)} {bottom}v5" stroke="#59636e"/>'
        yield f'<text x="{across(tick)}" y="{bottom + 18}" text-anchor="middle">{number(float(f"{tick:.10g}"))}</text>'
    yield f'<path d="M{LEFT} {bottom}H{right}" stroke="#59636e"/>'
    yield f'<text x="{right}" y="{HEIGHT - 6}" text-anchor="end" fill="#59636e">step</text>'


def _line(place: int, points: Sequence[tuple[int, float]], across: _Scale, up: _Scale) -> Iterator[str]:
    if points:
        drawn = " ".join(f"{across(step)},{up(value)}" for step, value in points)
        yield (
            f'<polyline points="{drawn}" fill="none" stroke="{COLORS[place % len(COLORS)]}" stroke-width="1.5" '
            'stroke-linejoin="round" stroke-linecap="round"/>'
        )


def _crosses(place: int, steps: Sequence[int], across: _Scale) -> Iterator[str]:
    """Yield a cross on the axis for each step with NaN or infinities."""
    if steps:
        drawn = "".join(f"M{across(step) - 3:.1f} {HEIGHT - BOTTOM - 7}l6 6m-6 0l6 -6" for step in steps)
        yield f'<path d="{drawn}" fill="none" stroke="{COLORS[place % len(COLORS)]}" stroke-width="1.5"/>'


def _legend(labels: Sequence[str]) -> Iterator[str]:
    """Yield the names of several lines, as many as fit into one row."""
    if len(labels) < 2:
        return
    wide = (WIDTH - LEFT - RIGHT) / min(len(labels), 6)
    for place, label in enumerate(labels[:6]):
        left = LEFT + place * wide
        yield f'<rect x="{left:.0f}" y="29" width="12" height="8" fill="{COLORS[place % len(COLORS)]}"/>'
        more = f" (+{len(labels) - 6})" if place == 5 and len(labels) > 6 else ""
        yield f'<text x="{left + 17:.0f}" y="37">{escape(cut(label, min(LEGEND_LETTERS, int(wide / 8))))}{more}</text>'


def png(
    charts: Sequence[Mapping[str, Any]], axes: Sequence[Sequence[Mapping[str, Any]]], theme: Theme = LIGHT
) -> bytes:
    """Return `charts` over the steps as PNG, one below the other; *axes* are those of each run.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    size = (WIDTH / SIZE_DOTS, len(charts) * HEIGHT / SIZE_DOTS)
    figure = Figure(figsize=size, dpi=DOTS, layout="constrained", facecolor=theme.paper)
    for plot, chart in zip(figure.subplots(len(charts), squeeze=False)[:, 0], charts, strict=True):
        _draw(plot, chart, axes, theme)
    out = io.BytesIO()
    FigureCanvasAgg(figure).print_png(out)  # savefig draws twice
    return out.getvalue()


def _draw(plot: Any, chart: Mapping[str, Any], axes: Sequence[Sequence[Mapping[str, Any]]], theme: Theme) -> None:
    for place, line in enumerate(chart["lines"]):
        color, steps = COLORS[place % len(COLORS)], axes[line["run"]][line["axis"]]["step"]
        values = [math.nan if value is None else value for value in line["last"]]
        name = _plain(cut(line["label"], LEGEND_LETTERS))
        plot.plot(steps, values, color=color, lw=1.2, label=name)
        odd = [steps[at] for at in line.get("nonfinite", ())]
        on_axis = plot.get_xaxis_transform()  # the height is a share of the plot's
        plot.plot(odd, [0.02] * len(odd), "x", color=color, markersize=4, clip_on=False, transform=on_axis)
    plot.set_facecolor(theme.paper)
    plot.set_title(_plain(chart["key"]), loc="left", fontsize=11, color=theme.text)
    plot.set_xlabel("step", loc="right", color=theme.text)
    plot.tick_params(colors=theme.text)
    plot.grid(axis="y", color=theme.grid)
    plot.spines[["top", "right", "left"]].set_visible(False)
    plot.spines["bottom"].set_color(theme.quiet)
    if len(chart["lines"]) > 1:
        plot.legend(frameon=False, fontsize=8, labelcolor=theme.text)


def _plain(text: str) -> str:
    """Return a text in which dollar signs begin no formula, and that a legend shows also if it begins with an underscore."""
    return "\u200b" * text.startswith("_") + text.replace("$", r"\$")
