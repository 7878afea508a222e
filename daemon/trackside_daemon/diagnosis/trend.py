"""Trends: the slope of a key over the steps of a run, with an interval that respects the correlation of its values."""

from __future__ import annotations

from array import array
from itertools import pairwise
from math import isfinite, sqrt
from statistics import fmean, linear_regression
from typing import TYPE_CHECKING, Any

from trackside.benchmark.intervals import p_value, t_quantile
from trackside_daemon.diagnosis.estimates import LARGEST, thinning
from trackside_daemon.history.clock_moves import moved, moves_of_stream
from trackside_daemon.history.read import reader
from trackside_daemon.history.read.charts import chart
from trackside_daemon.history.read.series import LOSSES, Window

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterator, Sequence

    from trackside_daemon.history.clock_moves import ClockMove
    from trackside_daemon.history.read.series import LogTails

POINTS = 300  # most samples of a key that are read
LAST = 0.1  # part of the steps of the later trend
LEAST = 8  # fewer samples show no trend
STEP_TIME = "step_time"


def trends(
    connection: sqlite3.Connection, uid: str, keys: Collection[str] = (), tails: LogTails | None = None
) -> list[dict[str, Any]]:
    """Return the trends of keys of the lowest rank in the last attempt that has them: of the loss, the step time and *keys*.

    Returns:
        ``key``; ``slope``: its change per 1,000 steps, with ``low`` and ``high``, its 95 % interval; ``r_squared``: the share
        of its variance that the line explains; ``p``: how likely such a slope is without a trend; ``start`` and ``end`` of the
        line, and its ``steps``. ``late``: the same of the last tenth of the steps, None if it has too few samples.
    """
    found, late = {}, {}
    for series in reader.series(connection, uid, [*LOSSES, *keys], tails=tails):
        points = chart(connection, series.series, series.tail, points=POINTS).points
        values = [(point[0], point[4]) for point in points if isfinite(point[4])]
        found[series.series.key] = values
        if values:
            last = Window("step", values[-1][0] - LAST * (values[-1][0] - values[0][0]))
            points_of_it = chart(connection, series.series, series.tail, last, POINTS).points
            ends = [(point[0], point[4]) for point in points_of_it if isfinite(point[4])]
            late[series.series.key] = trend(*zip(*ends, strict=True)) if len(ends) >= LEAST else {}
        if series.series.key in LOSSES or STEP_TIME not in found:
            found[STEP_TIME] = list(_step_times(points, moves_of_stream(connection, series.series.stream)))
    lines = {key: trend(*zip(*values, strict=True)) for key, values in found.items() if len(values) >= LEAST}
    return [{"key": key, **line, "late": late.get(key) or None} for key, line in lines.items() if line]


def trend(steps: Sequence[float], values: Sequence[float]) -> dict[str, Any]:
    """Return the trend of values; empty if the steps do not differ, or a value is above `LARGEST`."""
    if len(values) < LEAST or min(steps) == max(steps) or max(map(abs, values)) > LARGEST:
        return {}
    slope, intercept = linear_regression(steps, values)
    rest = [value - intercept - slope * step for step, value in zip(steps, values, strict=True)]
    mean, middle = fmean(values), fmean(steps)
    unexplained, whole = sum(one * one for one in rest), sum((value - mean) ** 2 for value in values)
    # Values that depend on their predecessors count less: see `estimates`.
    freedom = max(1.0, len(values) * thinning(rest) - 2)
    error = sqrt(unexplained / freedom / sum((step - middle) ** 2 for step in steps))
    half = t_quantile(0.975, freedom) * error
    return {
        "slope": 1000 * slope,
        "low": 1000 * (slope - half),
        "high": 1000 * (slope + half),
        "r_squared": 1 - unexplained / whole if whole else 0.0,
        "p": p_value(slope / error, freedom) if error else 0.0 if slope else 1.0,
        "start": intercept + slope * min(steps),
        "end": intercept + slope * max(steps),
        "steps": max(steps) - min(steps),
    }


def _step_times(points: Sequence[Sequence[float]], moves: Sequence[ClockMove]) -> Iterator[tuple[float, float]]:
    """Yield the seconds per step until each point."""
    steps = [int(point[0]) for point in points]
    times = moved(moves, steps, array("q", [round(point[1] * 1e6) for point in points]))
    for (step, began), (next_step, ended) in pairwise(zip(steps, times, strict=True)):
        if next_step > step:
            yield next_step, (ended - began) / 1e6 / (next_step - step)
