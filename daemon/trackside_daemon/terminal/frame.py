"""A frame: the lines of all panes, for a terminal of a given size."""

import time
from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any, NamedTuple

from trackside_daemon.model.text import cut, duration, shown
from trackside_daemon.terminal.histories import clock, render_histories
from trackside_daemon.terminal.plot import MIN_ROWS, loss_curve, plot, throughput_curve
from trackside_daemon.terminal.styled_lines import (
    ABSENT,
    MARK,
    SEVERITIES,
    Line,
    Piece,
    TableColumn,
    bar,
    fit,
    join,
    line_width,
    pad,
    percent,
    render_table,
    short_number,
    sparkline,
    text_field,
    to_float,
    with_prefix,
)
from trackside_daemon.terminal.view import View, render_processes

Alert = Mapping[str, Any]
Gpu = Mapping[str, Any]


# Styles by state; all other states are critical.
STATE_STYLES = {"running": "good", "starting": "info", "stopped": "warning", "finished": "dim"}

_COLUMNS = (
    TableColumn("RUN", 0, right=False),
    TableColumn("STATE", 8, right=False),
    TableColumn("STEP", 8),
    TableColumn("DONE", 5, min_frame=90),
    TableColumn("LEFT", 11),
    TableColumn("LOSS", 9),
    TableColumn("RATE", 8),
    TableColumn("RANKS", 5, min_frame=100),
    TableColumn("ATTEMPT", 7, min_frame=110),
    TableColumn("RECENT LOSS", 24, right=False, min_frame=120),
    TableColumn("ALERTS", 13, right=False),
)

NARROW = 19  # columns of a GPU with its utilization and temperature
MIDDLE = 39  # columns of a GPU also with memory and power
WIDE = 78  # columns of a GPU also with its clock, name and ranks
NEARLY_FULL = 0.95  # used fraction of memory or of a disk at which it is marked with a colour and `!`
PLOT_GAP = 2  # columns between two plots


class DaemonData(NamedTuple):
    """Responses of a daemon."""

    overview: Mapping[str, Any]  # response of `/api/v1/overview`
    series: Sequence[Mapping[str, Any]] = ()  # response of `/api/v1/series`
    run: str = ""  # id of the run of these series
    machine: Sequence[Mapping[str, Any]] = ()  # series of `/api/v1/machine`; empty while the view does not show them
    processes: Sequence[dict[str, Any]] = ()  # response of `/api/v1/processes`, likewise


class PaneHeights(NamedTuple):
    """Number of lines of each pane."""

    host: int
    runs: int
    plots: int
    gpus: int
    histories: int
    processes: int
    alerts: int


class ScreenFrame(NamedTuple):
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
    matching = view.matching_runs(overview)
    stops = len(_stops(matching, view, width, height))
    runs = 0 if view.enlarged else 1 + max(1, len(matching)) + stops
    if height is None:
        return PaneHeights(1, runs, 10, gpus, 0, 0, alerts)
    room = height - 1
    gpus = min(gpus, max(1, room // 5))
    alerts = min(alerts, 1 + max(2, room // 7))
    if view.machine:
        histories = min(2 + len(overview.get("gpus", ())), max(2, room // 3))
        processes = max(2, room - gpus - histories - alerts)
        return PaneHeights(1, 0, 0, gpus, histories, processes, max(0, room - gpus - histories - processes))
    runs = min(runs, 1 + max(3, room // 4) + stops)
    while room - gpus - alerts - runs < MIN_ROWS and gpus + alerts + runs > 5:
        runs = max(min(runs, 2), runs - 1)
        alerts = max(min(alerts, 2), alerts - 1)
        gpus = max(min(gpus, 1), gpus - 1)
    plots = max(0, room - gpus - alerts - runs)
    return PaneHeights(1, runs, plots if plots >= MIN_ROWS else 0, gpus, 0, 0, alerts)


def render_frame(data: DaemonData, view: View, width: int, height: int | None) -> ScreenFrame:
    """Return the lines of all panes."""
    overview = data.overview
    heights = pane_heights(overview, view, width, height)
    runs = view.matching_runs(overview)
    now = to_float(overview.get("time")) or 0.0
    return ScreenFrame(
        [render_host(overview, width)],
        _runs(runs, view, width, heights.runs, height) if heights.runs else [],
        _plots(data, view, width, heights.plots) if heights.plots else [],
        render_gpus(overview.get("gpus", ()), width, heights.gpus) if heights.gpus else [],
        render_histories(data.machine, overview, width, heights.histories) if heights.histories else [],
        _processes(data, view, width, heights.processes) if heights.processes else [],
        render_alerts(overview.get("alerts", ()), now, width, heights.alerts),
    )


def _stops(runs: Sequence[Mapping[str, Any]], view: View, width: int, full: int | None) -> list[Line]:
    """Return what stops the runs, in whole sentences; on a screen, which has *full* lines, what stops the selected one."""
    if full is not None and runs:
        runs = [runs[view.selected_index(runs)]]
    texts = (line for run in runs for line in wrap(text_field(run, "verdict"), width - len(MARK)))
    return [fit([(" " * len(MARK), ""), (line, "critical")], width) for line in texts]


def _runs(runs: Sequence[Mapping[str, Any]], view: View, width: int, height: int, full: int | None) -> list[Line]:
    if runs:
        stops = _stops(runs, view, width, full)[: max(0, height - 2)]
        return [*render_runs(runs, view.selected_index(runs), width, height - len(stops)), *stops]
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
    left = loss_curve(series, run)
    left = left._replace(title=f"{text_field(run, 'name', ABSENT)}  {left.title}")
    right = throughput_curve(series, run)
    pairs = zip(plot(left, columns, height), plot(right, columns, height), strict=True)
    return [fit([*left_line, (" " * PLOT_GAP, ""), *right_line], width) for left_line, right_line in pairs]


def render_alerts(alerts: Sequence[Alert], now: float, width: int, height: int) -> list[Line]:
    """Return *height* lines: the number of alerts by severity, and an alert per line."""
    lines: list[Line] = [_alerts_title(alerts)]
    longest = max((len(text_field(alert, "alert")) for alert in alerts), default=0)
    rows = height - 1
    visible = alerts if len(alerts) <= rows else alerts[: max(0, rows - 1)]
    lines += [_line(alert, now, min(longest, width // 4)) for alert in visible]
    if len(visible) < len(alerts) and rows > 0:
        lines.append([(f"+{len(alerts) - len(visible)} more: trackside alerts --firing", "dim")])
    return [fit(line, width) for line in (lines + [[]] * height)[:height]]


def style_of(alert: Alert) -> str:
    """Return the style of an alert."""
    severity = text_field(alert, "severity")
    return "dim" if alert.get("silenced") else severity if severity in SEVERITIES else "info"


def _alerts_title(alerts: Sequence[Alert]) -> Line:
    counts = [(sum(alert.get("severity") == severity for alert in alerts), severity) for severity in SEVERITIES]
    text = ", ".join(f"{count} {severity}" for count, severity in counts if count)
    return [("ALERTS ", "title"), (text or "none firing", "" if text else "dim")]


def _line(alert: Alert, now: float, name_width: int) -> Line:
    started = to_float(alert.get("started"))
    age = duration(None if started is None else max(0.0, now - started))
    style = style_of(alert)
    return [
        (pad("silenced" if alert.get("silenced") else text_field(alert, "severity"), 8), style),
        (" " + pad(text_field(alert, "alert"), name_width), style),
        (" " + pad(age, 11, right=True), "dim"),
        (f" {_description(alert)}", ""),
    ]


def _description(alert: Alert) -> str:
    """Return the summary, after the run's name if the summary does not contain it."""
    summary = text_field(alert, "summary")
    subject = text_field(alert, "name") or text_field(alert, "run") or text_field(alert, "subject")
    return f"{subject}: {summary}" if subject and subject not in summary else summary


def render_host(overview: Mapping[str, Any], width: int) -> Line:
    """Return the host's name, its load and the time; values that are not measured are left out."""
    host = overview.get("host") or {}
    now = to_float(overview.get("time"))
    clock = "" if now is None else time.strftime("%H:%M:%S", time.localtime(now))
    line = join([(text_field(host, "name", "trackside"), "title"), *_load(host)])
    return [*fit(line, max(0, width - len(clock) - 1)), (" ", ""), (clock, "dim")]


def _load(host: Mapping[str, Any]) -> Iterator[Piece]:
    if to_float(host.get("cpu_ratio")) is not None:
        cpus = f" of {short_number(host['cpus'])}" if to_float(host.get("cpus")) else ""
        yield f"cpu {percent(host['cpu_ratio'])}{cpus}", ""
    memory = to_float(host.get("memory_bytes"))
    available = to_float(host.get("memory_available_bytes"))
    if memory and available is not None:
        text = f"mem {with_prefix(memory - available, 1024)}/{with_prefix(memory, 1024)}"
        yield _usage(text, (memory - available) / memory)
    if swap := to_float(host.get("swap_used_bytes")):
        yield f"swap {with_prefix(swap, 1024)}", ""
    yield from _disks(host)
    down = to_float(host.get("receive_bytes_per_second"))
    up = to_float(host.get("transmit_bytes_per_second"))
    if down is not None and up is not None:
        yield f"net in {with_prefix(down)}B/s out {with_prefix(up)}B/s", ""


def _disks(host: Mapping[str, Any]) -> Iterator[Piece]:
    """Yield the usage of the two fullest disks."""
    values = host.get("disks")
    usages = []
    for disk in [disk for disk in values if isinstance(disk, dict)] if isinstance(values, list) else ():
        size = to_float(disk.get("size_bytes"))
        free = to_float(disk.get("avail_bytes"))
        if size and free is not None:
            usages.append((1 - free / size, text_field(disk, "mountpoint")))
    for used, mountpoint in sorted(usages, reverse=True)[:2]:
        yield _usage(f"{mountpoint} {percent(used)}", used)


def _usage(text: str, used: float) -> Piece:
    return (f"{text}!", "warning") if used >= NEARLY_FULL else (text, "")


def gpu_rows(gpus: Sequence[Gpu], width: int) -> int:
    """Return the number of lines that the GPUs need."""
    return -(-len(gpus) // max(1, width // MIDDLE)) if len(gpus) > 2 else len(gpus)


def render_gpus(gpus: Sequence[Gpu], width: int, height: int) -> list[Line]:
    """Return *height* lines with as much about each GPU as fits."""
    columns, size = _grid(len(gpus), width, height)
    cells = [_gpu(gpu, size) for gpu in gpus]
    if len(cells) > columns * height:
        visible = max(0, columns * height - 1)
        down = sum(not gpu.get("up", True) for gpu in gpus[visible:])
        note = f"+{len(cells) - visible} more{f', {down} down' if down else ''}"
        cells = [*cells[:visible], fit([(note, "critical" if down else "dim")], size)]
    lines = []
    for row in range(height):
        line: Line = []
        for cell in cells[row::height]:
            line += [*cell, ("  ", "")]
        lines.append(fit(line, width))
    return lines


def _grid(count: int, width: int, height: int) -> tuple[int, int]:
    """Return the number of columns of GPUs, and the width of each."""
    for size in (WIDE, MIDDLE, NARROW):
        columns = max(1, (width + 2) // (size + 2))
        if columns * height >= count or size == NARROW:
            needed = max(1, min(columns, -(-count // max(1, height))))
            return needed, min(WIDE + 40, (width + 2) // needed - 2)
    raise AssertionError


def _gpu(gpu: Gpu, size: int) -> Line:
    number = pad(text_field(gpu, "gpu", "?"), 2, right=True)
    if not gpu.get("up", True):
        return fit([(f"{number} ", ""), ("DOWN ", "critical"), (text_field(gpu, "name"), "dim")], size)
    line: Line = [(pad(percent(gpu.get("utilization_ratio")), 5, right=True), "")]
    limits = gpu.get("limited")
    reasons = ",".join(shown(reason) for reason in limits) if isinstance(limits, list) else ""
    is_wide = size >= WIDE - 2
    if is_wide or (size >= MIDDLE - 2 and not reasons):
        memory = f"{with_prefix(gpu.get('memory_used_bytes'), 1024)}/{with_prefix(gpu.get('memory_bytes'), 1024)}"
        line.append((f" {pad(memory, 11, right=True)}", ""))
    line += _power_and_temperature(gpu, power=size >= MIDDLE - 2)
    if is_wide:
        line.append((f" {pad(clock(gpu), 7, right=True)}", ""))
        name = "" if reasons else text_field(gpu, "name")  # the reasons need the room
        line += [(f" {text}", style) for text, style in ((name, "dim"), (_ranks(gpu), "")) if text]
    if reasons:
        line.append((f" {cut(f'!{reasons}', max(4, size - 8 - line_width(line)))}", "warning"))
    length = max(4, min(24 if is_wide else 12, size - 3 - line_width(line)))
    return fit([(f"{number} ", ""), (bar(gpu.get("utilization_ratio"), length), "good"), *line], size)


def _power_and_temperature(gpu: Gpu, *, power: bool) -> Line:
    """Return both, with blanks for a missing value, so that the columns stay aligned."""
    watts = to_float(gpu.get("power_watts"))
    celsius = to_float(gpu.get("temperature_celsius"))
    line: Line = [(" " * 6 if watts is None else f"{watts:5.0f}W", "")] if power else []
    return [*line, (" " * 5 if celsius is None else f"{celsius:4.0f}C", "")]


def _ranks(gpu: Gpu) -> str:
    """Return the ranks that train on the GPU, as RUN:RANK."""
    values = gpu.get("ranks")
    ranks = [rank for rank in values if isinstance(rank, dict)] if isinstance(values, list) else []
    return ",".join(
        f"{text_field(rank, 'name') or text_field(rank, 'run')}:{text_field(rank, 'rank')}" for rank in ranks
    )


def render_runs(runs: Sequence[Mapping[str, Any]], selected: int, width: int, height: int) -> list[Line]:
    """Return *height* lines: the names of the columns, and the runs around the selected one."""
    return render_table(_COLUMNS, runs, _cells, selected, (width, height), titles={"RUN": _title(runs, height)})


def _title(runs: Sequence[Mapping[str, Any]], height: int) -> str:
    return f"RUN ({len(runs)})" if len(runs) >= height else "RUN"


def _cells(run: Mapping[str, Any]) -> dict[str, Piece]:
    """Return the text and style of each column."""
    state = text_field(run, "state", ABSENT)
    loss = short_number(run.get("loss"))
    return {
        "RUN": (text_field(run, "name", ABSENT), ""),
        "STATE": (state, STATE_STYLES.get(state, "" if state == ABSENT else "critical")),
        "STEP": (short_number(run.get("step")), ""),
        "DONE": (percent(run.get("progress_ratio")), ""),
        "LEFT": (duration(to_float(run.get("remaining_seconds"))), ""),
        "LOSS": (loss, "critical" if loss in {"NaN", "inf", "-inf"} else ""),
        "RATE": (_rate(run), ""),
        "RANKS": (short_number(run.get("world_size")), ""),
        "ATTEMPT": (short_number(run.get("attempt")), ""),
        "RECENT LOSS": (sparkline(run.get("sparkline"), 24), "good"),
        "ALERTS": _alerts(run.get("alerts")),
    }


def _rate(run: Mapping[str, Any]) -> str:
    """Return tokens, samples or steps per second, whichever the run has first."""
    for name, unit in (("tokens_per_second", "tok"), ("samples_per_second", "smp")):
        if to_float(run.get(name)) is not None:
            return f"{with_prefix(run[name])}{unit}"
    seconds = to_float(run.get("step_seconds"))
    return f"{with_prefix(1 / seconds)}step" if seconds else ABSENT


def _alerts(counts: object) -> Piece:
    """Return the number of alerts of the highest severity, and of all others."""
    if not isinstance(counts, dict):
        return ABSENT, "dim"
    numbers = {severity: int(to_float(counts.get(severity)) or 0) for severity in SEVERITIES}
    firing = [(severity, number) for severity, number in numbers.items() if number]
    if not firing:
        return ABSENT, "dim"
    highest, number = firing[0]
    others = sum(other for _, other in firing[1:])
    return f"{number} {highest}{f' +{others}' if others else ''}", highest
