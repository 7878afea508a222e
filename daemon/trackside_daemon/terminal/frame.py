"""A frame: the lines of all panes, for a terminal of a given size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trackside_daemon.terminal import curves
from trackside_daemon.terminal.alerts import render_alerts
from trackside_daemon.terminal.formatting import ABSENT, text_field, to_float
from trackside_daemon.terminal.gpus import gpu_rows, render_gpus
from trackside_daemon.terminal.histories import render_histories
from trackside_daemon.terminal.host import render_host
from trackside_daemon.terminal.plot import MIN_ROWS, plot
from trackside_daemon.terminal.processes import render_processes
from trackside_daemon.terminal.runs import render_runs
from trackside_daemon.terminal.styled_lines import Line, fit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trackside_daemon.terminal.view import View

PLOT_GAP = 2  # columns between two plots


class DaemonData(NamedTuple):
    """Responses of a daemon.

    Attributes:
        overview: Response of `/api/v1/overview`.
        series: Response of `/api/v1/series`.
        run: Id of the run of these series.
        machine: Series of `/api/v1/machine`; empty while the view does not show them.
        processes: Response of `/api/v1/processes`, likewise.
    """

    overview: Mapping[str, Any]
    series: Sequence[Mapping[str, Any]] = ()
    run: str = ""
    machine: Sequence[Mapping[str, Any]] = ()
    processes: Sequence[dict[str, Any]] = ()


class PaneHeights(NamedTuple):
    """Number of lines of each pane."""

    host: int
    runs: int
    plots: int
    gpus: int
    histories: int
    processes: int
    alerts: int


class Frame(NamedTuple):
    """Lines of each pane, from top to bottom."""

    host: list[Line]
    runs: list[Line]
    plots: list[Line]
    gpus: list[Line]
    histories: list[Line]
    processes: list[Line]
    alerts: list[Line]


def plot_columns(width: int) -> int:
    """Return the width of each of the two plots."""
    return max(8, (width - PLOT_GAP) // 2)


def pane_heights(overview: Mapping[str, Any], view: View, width: int, height: int | None) -> PaneHeights:
    """Divide *height* lines among the panes; with None, each has as many as it needs."""
    gpus = gpu_rows(overview.get("gpus", ()), width)
    alerts = 1 + len(overview.get("alerts", ()))
    runs = 0 if view.enlarged else 1 + max(1, len(view.matching_runs(overview)))
    if height is None:
        return PaneHeights(1, runs, 10, gpus, 0, 0, alerts)
    room = height - 1
    gpus = min(gpus, max(1, room // 5))
    alerts = min(alerts, 1 + max(2, room // 7))
    if view.machine:
        histories = min(2 + len(overview.get("gpus", ())), max(2, room // 3))
        processes = max(2, room - gpus - histories - alerts)
        return PaneHeights(1, 0, 0, gpus, histories, processes, max(0, room - gpus - histories - processes))
    runs = min(runs, 1 + max(3, room // 4))
    while room - gpus - alerts - runs < MIN_ROWS and gpus + alerts + runs > 5:
        runs = max(min(runs, 2), runs - 1)
        alerts = max(min(alerts, 2), alerts - 1)
        gpus = max(min(gpus, 1), gpus - 1)
    plots = max(0, room - gpus - alerts - runs)
    return PaneHeights(1, runs, plots if plots >= MIN_ROWS else 0, gpus, 0, 0, alerts)


def render_frame(data: DaemonData, view: View, width: int, height: int | None) -> Frame:
    """Return the lines of all panes."""
    overview = data.overview
    heights = pane_heights(overview, view, width, height)
    runs = view.matching_runs(overview)
    now = to_float(overview.get("time")) or 0.0
    return Frame(
        [render_host(overview, width)],
        _runs(runs, view, width, heights.runs) if heights.runs else [],
        _plots(data, view, width, heights.plots) if heights.plots else [],
        render_gpus(overview.get("gpus", ()), width, heights.gpus) if heights.gpus else [],
        render_histories(data.machine, overview, width, heights.histories) if heights.histories else [],
        _processes(data, view, width, heights.processes) if heights.processes else [],
        render_alerts(overview.get("alerts", ()), now, width, heights.alerts),
    )


def _runs(runs: Sequence[Mapping[str, Any]], view: View, width: int, height: int) -> list[Line]:
    if runs:
        return render_runs(runs, view.selected_index(runs), width, height)
    note = f"no run matches {view.filter!r}; press / and Esc to show all" if view.filter else "no live runs"
    empty: list[Line] = [[("RUN", "title")], [(note, "dim")], *([[]] * height)]
    return [fit(line, width) for line in empty[:height]]


def _processes(data: DaemonData, view: View, width: int, height: int) -> list[Line]:
    if not data.machine and not data.processes:
        return [fit(line, width) for line in ([("PROCESSES", "title")], [("no data yet", "dim")], *([[]] * height))][
            :height
        ]
    found = view.matching_processes(data.processes)
    return render_processes(found, view.process_index(found), view.order, (width, height), is_reversed=view.is_reversed)


def _plots(data: DaemonData, view: View, width: int, height: int) -> list[Line]:
    """Return the plots of loss and throughput side by side."""
    run = view.selected_run(data.overview)
    if run is None:
        return [fit([], width)] * height
    series = data.series if data.run == str(run.get("id")) else ()
    columns = plot_columns(width)
    left = curves.loss(series, run)
    left = left._replace(title=f"{text_field(run, 'name', ABSENT)}  {left.title}")
    right = curves.throughput(series, run)
    pairs = zip(plot(left, columns, height), plot(right, columns, height), strict=True)
    return [fit([*left_line, (" " * PLOT_GAP, ""), *right_line], width) for left_line, right_line in pairs]
