"""Draw a chart as a PNG file with matplotlib, which has its own fonts, so that it draws text on machines without any."""

from __future__ import annotations

import io
from math import nan
from typing import TYPE_CHECKING, Any

from trackside_daemon.documents.svg import COLORS, HEIGHT, LEGEND_LETTERS, WIDTH
from trackside_daemon.model.text import cut

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DOTS = 200  # per inch: legible in a printed paper
SIZE_DOTS = 100  # of an inch in the units of the SVG file


def png(chart: Mapping[str, Any], axes: Sequence[Sequence[Mapping[str, Any]]]) -> bytes:
    """Return a chart of `charts` over the steps as PNG; *axes* are those of each run.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH / SIZE_DOTS, HEIGHT / SIZE_DOTS), dpi=DOTS, layout="constrained")
    plot = figure.subplots()
    for place, line in enumerate(chart["lines"]):
        color, steps = COLORS[place % len(COLORS)], axes[line["run"]][line["axis"]]["step"]
        values = [nan if value is None else value for value in line["last"]]
        name = _plain(cut(line["label"], LEGEND_LETTERS))
        plot.plot(steps, values, color=color, lw=1.2, label=name)
        odd = [steps[at] for at in line.get("nonfinite", ())]
        on_axis = plot.get_xaxis_transform()  # the height is a share of the plot's
        plot.plot(odd, [0.02] * len(odd), "x", color=color, markersize=4, clip_on=False, transform=on_axis)
    plot.set_title(_plain(chart["key"]), loc="left", fontsize=11)
    plot.set_xlabel("step", loc="right")
    plot.grid(axis="y", color="#d5dae0")
    plot.spines[["top", "right", "left"]].set_visible(False)
    if len(chart["lines"]) > 1:
        plot.legend(frameon=False, fontsize=8)
    out = io.BytesIO()
    figure.savefig(out, format="png")
    return out.getvalue()


def _plain(text: str) -> str:
    """Return a text in which dollar signs begin no formula, and that a legend shows also if it begins with an underscore."""
    return "\u200b" * text.startswith("_") + text.replace("$", r"\$")
