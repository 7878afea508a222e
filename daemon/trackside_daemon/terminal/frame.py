"""A frame: the lines of all panes, for a terminal of some size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trackside_daemon.terminal import curves
from trackside_daemon.terminal.alerts import fired
from trackside_daemon.terminal.formatting import NONE, real, told
from trackside_daemon.terminal.gpus import barred, rows_wanted
from trackside_daemon.terminal.host import hosted
from trackside_daemon.terminal.plot import LEAST_ROWS, plot
from trackside_daemon.terminal.runs import listed
from trackside_daemon.terminal.styled_lines import Line, fitted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trackside_daemon.terminal.view import View

BETWEEN = 2
"""Columns between two plots."""


class Told(NamedTuple):
    """What a daemon has said.

    Attributes:
        overview: `/api/v1/overview`.
        series: Of `/api/v1/series`, those of *run*, an id.
    """

    overview: Mapping[str, Any]
    series: Sequence[Mapping[str, Any]] = ()
    run: str = ""


class Heights(NamedTuple):
    """Lines of each pane."""

    host: int
    runs: int
    plots: int
    gpus: int
    alerts: int


class Frame(NamedTuple):
    """The lines of each pane, from above."""

    host: list[Line]
    runs: list[Line]
    plots: list[Line]
    gpus: list[Line]
    alerts: list[Line]


def columns(width: int) -> int:
    """Of each of the two plots."""
    return max(8, (width - BETWEEN) // 2)


def heights(overview: Mapping[str, Any], view: View, width: int, height: int | None) -> Heights:
    """How many lines each pane has, of so many; of None as many as they want."""
    gpus, alerts = rows_wanted(overview.get("gpus", ()), width), 1 + len(overview.get("alerts", ()))
    runs = 0 if view.large else 1 + max(1, len(view.runs(overview)))
    if height is None:
        return Heights(1, runs, 10, gpus, alerts)
    room = height - 1
    gpus, alerts = min(gpus, max(1, room // 5)), min(alerts, 1 + max(2, room // 7))
    runs = min(runs, 1 + max(3, room // 4))
    while room - gpus - alerts - runs < LEAST_ROWS and gpus + alerts + runs > 5:
        runs, alerts, gpus = max(min(runs, 2), runs - 1), max(min(alerts, 2), alerts - 1), max(min(gpus, 1), gpus - 1)
    plots = max(0, room - gpus - alerts - runs)
    return Heights(1, runs, plots if plots >= LEAST_ROWS else 0, gpus, alerts)


def frame(said: Told, view: View, width: int, height: int | None) -> Frame:
    """All panes."""
    overview = said.overview
    sizes = heights(overview, view, width, height)
    runs = view.runs(overview)
    return Frame(
        [hosted(overview, width)],
        _listed(runs, view, width, sizes.runs) if sizes.runs else [],
        _plots(said, view, width, sizes.plots) if sizes.plots else [],
        barred(overview.get("gpus", ()), width, sizes.gpus) if sizes.gpus else [],
        fired(overview.get("alerts", ()), real(overview.get("time")) or 0.0, width, sizes.alerts),
    )


def _listed(runs: Sequence[Mapping[str, Any]], view: View, width: int, height: int) -> list[Line]:
    if runs:
        return listed(runs, view.place(runs), width, height)
    why = f"no run fits {view.filter!r}; Esc in the filter (/) shows all" if view.filter else "no run lives"
    empty: list[Line] = [[("RUN", "title")], [(why, "dim")], *([[]] * height)]
    return [fitted(line, width) for line in empty[:height]]


def _plots(said: Told, view: View, width: int, height: int) -> list[Line]:
    """Loss and throughput side by side."""
    run = view.run(said.overview)
    if run is None:
        return [fitted([], width)] * height
    series = said.series if said.run == str(run.get("id")) else ()
    wide = columns(width)
    name = told(run, "name", NONE)
    left, right = curves.loss(series, run), curves.throughput(series, run)
    pair = zip(plot(left._replace(title=f"{name}  {left.title}"), wide, height), plot(right, wide, height), strict=True)
    return [fitted([*one, (" " * BETWEEN, ""), *other], width) for one, other in pair]
