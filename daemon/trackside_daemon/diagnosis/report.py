"""The contents of a report about a run, within a size."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from contextlib import suppress
from itertools import islice
from math import isfinite
from time import time
from typing import TYPE_CHECKING, Any

import msgspec

from trackside_daemon.captures.kinds import by_name
from trackside_daemon.causes.facts import LAST_TICK, Facts, is_read
from trackside_daemon.causes.quantities import named_curves
from trackside_daemon.diagnosis.accounts import read_run
from trackside_daemon.diagnosis.diagnosis import diagnose
from trackside_daemon.history.capture_rows import captures
from trackside_daemon.history.files import media_lines
from trackside_daemon.history.media import index
from trackside_daemon.history.read import alert_reader, layers, reader
from trackside_daemon.history.read.charts import chart
from trackside_daemon.history.read.layers import alerts_by_layer, ranked
from trackside_daemon.history.read.resources import Resources, machine_stream
from trackside_daemon.history.read.series import LOSSES, Window
from trackside_daemon.model.configuration import changes
from trackside_daemon.model.metric import json_number

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from trackside_daemon.diagnosis.settings import CostSection
    from trackside_daemon.history.read.charts import Chart
    from trackside_daemon.history.read.reader import RunSeries

POINTS = 1000  # most points of a chart
LEAST_POINTS = 100  # fewer would hide what happened: then keys are left out
RESOURCE_POINTS = 300  # most points of a chart of the machine
POINT_BYTES = 30  # about the size of a point as JSON
MOST = 200  # newest alerts, and newest events
MAX_KEYS = 1000
MOST_CAPTURES = 20  # newest captures
MOST_LAYERS = 20  # that stand out most
LINES = 20  # most lines of a capture's summary
MEDIA_SERIES = 24  # most series of media of a run
MEDIA_STEPS = 12  # most steps of such a series
MEDIA_SIZE = 4_000_000  # most bytes of a run's media
DIGITS = 6  # significant digits of values, which a chart cannot show


def read_contents(connection: sqlite3.Connection, uid: str, prices: CostSection, size: int) -> dict[str, Any]:
    """Return what a report has about a run, by its id, as JSON.

    Args:
        connection: In a transaction.
        uid: The run's id.
        prices: The configured prices.
        size: Most bytes of the charts. They are those of the lowest rank, the loss first.

    Returns:
        ``run``, ``diagnosis``, ``alerts``, ``events``; ``layers``: those of an observed model that stand out most, as
        `layers.ranked` has them, with all alerts of the run; ``captures``: ``kind``, ``asked`` and the lines of their ``text``; ``media``: see `read_media`;
        ``since``: the run's baseline, its ``id``, ``name`` and what changed, see `changes`, or None; ``charts``: ``key``, ``attempt``, ``axis``, ``last`` and, where
        points stand for several samples, ``low`` and ``high``, with null for NaN and infinities; of such values ``nonfinite``,
        the places of the points that have some, and ``ends``, the last value if it is one; ``axes``: ``step`` and
        ``time``, seconds since the run's start, by a chart's ``axis``; ``left_out``: the number of keys without a chart. Behind the
        charts of the run's keys are those of its machine, such as ``resources/gpu_memory/gpu_0``.

    Raises:
        UnknownRunError: There is no run with this id.
        ValueError: A block is damaged.
    """
    run = read_run(connection, uid, MAX_KEYS)
    diagnosis = diagnose(connection, uid, prices)
    alerts = alert_reader.alerts(connection, alert_reader.AlertFilter(uid, limit=MOST, evidence=False))
    return {
        "run": run,
        "diagnosis": diagnosis,
        "alerts": alerts,
        "events": reader.events(connection, uid, MOST),
        "layers": ranked(layers.newest(connection, uid)["kinds"], alerts_by_layer(alerts))[:MOST_LAYERS],
        "captures": [
            {"kind": one.kind, "asked": one.asked, "text": by_name.text(one)[1 : LINES + 1]}
            for one in captures(connection, uid)[-MOST_CAPTURES:]
        ],
        "media": read_media(connection, uid),
        "since": _since(connection, run, diagnosis["comparison"]["baseline"]),
        **_with_resources(connection, run, _charts(connection, run, size)),
    }


def _since(connection: sqlite3.Connection, run: dict[str, Any], baseline: Sequence[str]) -> dict[str, Any] | None:
    if not baseline or not run["attempt_list"]:
        return None
    before = reader.head(connection, baseline[0])
    changed = changes(before["attempt_list"][-1], run["attempt_list"][-1]) if before["attempt_list"] else []
    return {"id": before["id"], "name": before["name"], "changes": changed}


def _charts(connection: sqlite3.Connection, run: dict[str, Any], size: int) -> dict[str, Any]:
    selected = list(islice(reader.series(connection, run["id"]), MAX_KEYS))
    selected.sort(key=_place)
    points = min(POINTS, max(LEAST_POINTS, size // (POINT_BYTES * max(1, len(selected)))))
    axes: dict[str, int] = {}  # ranks push most keys together, so that their charts share an axis
    charts: list[dict[str, Any]] = []
    for series in selected:
        drawn = chart(connection, series.series, series.tail, points=points)
        axis = _axis(drawn, run["started"])
        entry = {"key": series.series.key, "attempt": series.attempt, **_columns(drawn)}
        size -= len(msgspec.json.encode(entry)) + (0 if axis in axes else len(axis))
        if size < 0:
            break
        charts.append({**entry, "axis": axes.setdefault(axis, len(axes))})
    keys = {series.series.key for series in selected}
    left_out = len(keys - {entry["key"] for entry in charts})
    return {"axes": [msgspec.json.decode(axis) for axis in axes], "charts": charts, "left_out": left_out}


def _with_resources(connection: sqlite3.Connection, run: dict[str, Any], drawn: dict[str, Any]) -> dict[str, Any]:
    """Return charts with those of the run's machine behind them, over the steps of the first one."""
    if not drawn["charts"]:
        return drawn
    ended = time() if run["ended"] is None else float(run["ended"])
    window = Window("time", float(run["started"]), ended + LAST_TICK)
    stream = machine_stream(connection, run["id"])
    resources = Resources(connection, window, RESOURCE_POINTS, only=is_read, stream=stream)
    steps = drawn["axes"][drawn["charts"][0]["axis"]]
    axes: dict[tuple[float, ...], int] = {}
    charts = []
    for key, every in named_curves(Facts(run, (), (), resources, ended)).items():
        values: defaultdict[float, float] = defaultdict(float)
        for part in every:
            for moment, value in part.items():
                values[moment] += value
        points = [
            (moment, value) for moment, value in sorted(values.items()) if moment - run["started"] >= steps["time"][0]
        ]
        if points:
            axis = axes.setdefault(tuple(moment for moment, _ in points), len(drawn["axes"]) + len(axes))
            column = _rounded([value for _, value in points])
            charts.append({"key": key, "attempt": drawn["charts"][-1]["attempt"], "last": column, "axis": axis})
    times = [[round(moment - run["started"], 2) for moment in axis] for axis in axes]
    added = [
        {"step": [steps["step"][bisect_right(steps["time"], one) - 1] for one in axis], "time": axis} for axis in times
    ]
    return {**drawn, "axes": [*drawn["axes"], *added], "charts": [*drawn["charts"], *charts]}


def _place(series: RunSeries) -> tuple[bool, bool, str]:
    """Return the place of a key: the run's loss first, then other losses, then by name."""
    key = series.series.key
    return key not in LOSSES, "loss" not in key.lower(), key


def _axis(drawn: Chart, started: float) -> str:
    columns = {
        "step": [int(point[0]) for point in drawn.points],
        "time": [round(point[1] - started, 2) for point in drawn.points],
    }
    return msgspec.json.encode(columns).decode()


def _columns(drawn: Chart) -> dict[str, Any]:
    low, high, last = (_rounded([point[place] for point in drawn.points]) for place in (2, 3, 4))
    columns: dict[str, Any] = {"last": last} if low == high == last else {"last": last, "low": low, "high": high}
    counts = drawn.nonfinite or [not isfinite(point[4]) for point in drawn.points]
    if places := [place for place, count in enumerate(counts) if count]:
        columns["nonfinite"] = places
    if drawn.points and not isfinite(drawn.points[-1][4]):
        columns["ends"] = json_number(drawn.points[-1][4])
    return columns


def _rounded(values: Sequence[float]) -> list[float | None]:
    return [float(f"{value:.{DIGITS}g}") if isfinite(value) else None for value in values]


def read_media(connection: sqlite3.Connection, run: str, size: int = MEDIA_SIZE) -> list[dict[str, Any]]:
    """Return some steps of each series of media of a run, the first and the newest among them: ``kind``, ``key``, ``rank``, ``count``, and ``items`` with ``step`` and ``data``."""
    history = index.history_of(connection)
    series: dict[tuple[str, str, int], list[index.MediaFile]] = {}
    for item in index.read(history, run):
        series.setdefault((item.kind, item.key, item.rank), []).append(item)
    found = []
    for (kind, key, rank), items in list(series.items())[:MEDIA_SERIES]:
        drawn = []
        for item in _spread(items):
            if item.bytes > size:
                continue
            with suppress(OSError, ValueError):
                data = media_lines.shown(kind, index.content(history, run, item))
                drawn.append({"step": item.step, "data": data, "width": item.width, "height": item.height})
                size -= item.bytes
        if drawn:
            found.append({"kind": kind, "key": key, "rank": rank, "count": len(items), "items": drawn})
    return found


def _spread(items: Sequence[index.MediaFile]) -> list[index.MediaFile]:
    """Return at most `MEDIA_STEPS` items at equal distances."""
    if len(items) <= MEDIA_STEPS:
        return list(items)
    return [items[round(place * (len(items) - 1) / (MEDIA_STEPS - 1))] for place in range(MEDIA_STEPS)]
