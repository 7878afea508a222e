"""Curves of runs: charts in buckets, bands over ranks, and streams of every sample."""

from __future__ import annotations

from bisect import bisect_left
from itertools import islice, repeat
from math import inf, isnan
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec

from trackside_daemon.history.read import charts, reader, series
from trackside_daemon.history.read.resources import growth, machine_stream
from trackside_daemon.history.read.series import LogTail, Window
from trackside_daemon.history.schema import HOST
from trackside_daemon.model.metric import json_number
from trackside_daemon.questions.question import InvalidError

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Collection, Iterator, Sequence

    from trackside_daemon.history.read.reader import RunSeries
    from trackside_daemon.history.read.series import By
    from trackside_daemon.questions.question import History, RunPart

MAX_SERIES = 1000  # series in one response
MAX_BAND_SERIES = 8192  # series from which bands are made, such as eight keys of a thousand ranks
MAX_BUCKETS = 200_000  # buckets in one response, over all its series

_encode = msgspec.json.Encoder().encode

_Points = list[list[Any]]
"""Points ``[step, time, min, max, last]``, as `read_charts` returns them."""


def find(
    history: History,
    names: Collection[str],
    keys: Collection[str],
    part: RunPart,
    *,
    band: bool = False,
    strict: bool = True,
) -> list[RunSeries]:
    """Return the series of a part of runs, those of all ranks for a *band* if it names none.

    Raises:
        UnknownKeyError: It is *strict*, and no run has one of the keys.
        InvalidError: There are more than one answer has.
    """
    ranks, most = (part.ranks() or [], MAX_BAND_SERIES) if band else (part.ranks(), MAX_SERIES)
    with history.reading() as connection:
        uids = dict.fromkeys(reader.resolve(connection, name) for name in names)
        found = (one for uid in uids for one in reader.series(connection, uid, keys or None, ranks, part.attempt))
        selected = list(islice(found, most + 1))
        if strict:
            reader.check_keys(connection, uids, keys, selected)
    if len(selected) > most:
        raise InvalidError(f"more than {most} series; name keys, ranks or an attempt")
    return selected


def read_charts(
    history: History, selected: list[RunSeries], window: Window, points: int, *, means: bool = False
) -> list[dict[str, Any]]:
    """Return one chart per series, each with at most *points* buckets ``[step, time, min, max, last]``.

    With *means*, a chart whose buckets have several samples also has their ``means``.
    """
    result = []
    for selected_series in selected:
        # One read transaction per series: the WAL cannot shrink while a transaction is open.
        with history.reading() as connection:
            current = _refresh(connection, selected_series)
            chart = charts.chart(
                connection, current.series, current.tail, _run_window(connection, current, window), points
            )
        result.append(
            {
                **_identity(current),
                "samples": chart.samples,
                "unit": chart.unit,
                "trimmed": chart.trimmed,
                "points": [_point_json(point) for point in chart.points],
                **({"nonfinite": chart.nonfinite} if chart.nonfinite else {}),
                **({"means": [json_number(mean) for mean in chart.means]} if means and chart.means else {}),
            }
        )
    return result


def concatenate(charts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the charts of several attempts as one, with ``points`` and, where present, ``nonfinite``."""
    nonfinite = [count for chart in charts for count in chart.get("nonfinite", [0] * len(chart["points"]))]
    points = [point for chart in charts for point in chart["points"]]
    return {"points": points, **({"nonfinite": nonfinite} if any(nonfinite) else {})}


def _refresh(connection: Any, selected: RunSeries) -> RunSeries:
    """Return the series as it is now; part of its tail may have been packed since it was selected."""
    current = series.reload(connection, selected.series)
    if current == selected.series:
        return selected
    return selected._replace(series=current, tail=LogTail(connection, current.stream))


def _run_window(connection: Any, selected: RunSeries, window: Window) -> Window:
    """Limit a window on host and GPU series to the run's time: they have no steps and exist outside the run."""
    if selected.rank is not None:
        return window
    began, ended = reader.span(connection, reader.resolve(connection, selected.run))
    low, high = (window.low, window.high) if window.by == "time" else (-inf, inf)
    return Window("time", max(low, began), min(high, inf if ended is None else ended))


def stream_series(history: History, selected: list[RunSeries], window: Window) -> Iterator[bytes]:
    """Yield ``{"series": […]}`` with every sample, in pieces."""
    yield b'{"series":['
    for number, one_series in enumerate(selected):
        # Without the closing brace, because the points are streamed as the last field of the object.
        yield (b"," if number else b"") + _encode(_identity(one_series))[:-1] + b',"points":['
        yield from _sample_blocks(history, [one_series], window)
        yield b"]}"
    yield b"]}"


def stream_points(history: History, selected: list[RunSeries], window: Window) -> Iterator[bytes]:
    """Yield ``{"key": …, "points": […]}`` with every sample of several attempts, in pieces."""
    yield b'{"key":' + _encode(selected[0].series.key) + b',"points":['
    yield from _sample_blocks(history, selected, window)
    yield b"]}"


def _sample_blocks(history: History, selected: list[RunSeries], window: Window) -> Iterator[bytes]:
    """Yield every sample in the window as ``[step, time, value]``, one block of samples at a time."""
    first = True
    for one_series in selected:
        with history.reading() as connection:
            limited = _run_window(connection, one_series, window)
        for steps, times, values in series.samples(history, one_series.series, window=limited):
            rows = [
                (step, time / 1e6, json_number(value)) for step, time, value in zip(steps, times, values, strict=True)
            ]
            yield (b"" if first else b",") + _encode(rows)[1:-1]
            first = False


def _identity(selected: RunSeries) -> dict[str, Any]:
    return {"run": selected.run, "attempt": selected.attempt, "rank": selected.rank, "key": selected.series.key}


def _point_json(point: list[float]) -> list[float | str]:
    step, moment, *values = point
    return [step, moment, *map(json_number, values)]


def rank_bands(charts: Sequence[dict[str, Any]], by: By) -> list[dict[str, Any]]:
    """Return one band per run, key and attempt, with points ``[step, time, min, max, median]``.

    A band with NaN or infinite samples also has ``nonfinite``: their number in each point, over all ranks. The buckets
    are those of the rank with the most buckets. A bucket of another rank counts in the first bucket that does not end
    before it.

    Args:
        charts: Charts of single ranks from `read_charts`.
        by: The axis of the buckets, step or time.
    """
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for chart in charts:
        groups.setdefault((chart["run"], chart["attempt"], chart["key"]), []).append(chart)
    return [
        {
            "run": run,
            "attempt": attempt,
            "key": key,
            "ranks": len(ranks),
            **_band(ranks, 0 if by == "step" else 1),
        }
        for (run, attempt, key), ranks in groups.items()
    ]


def _band(ranks: Sequence[dict[str, Any]], axis: int) -> dict[str, Any]:
    longest: _Points = max((chart["points"] for chart in ranks), key=len)
    ends = [point[axis] for point in longest]
    lows: list[list[float]] = [[] for _ in ends]
    highs: list[list[float]] = [[] for _ in ends]
    lasts: list[dict[int, float]] = [{} for _ in ends]
    nonfinite = [0] * len(ends)
    for number, chart in enumerate(ranks):
        points: _Points = chart["points"]
        for point, count in zip(points, chart.get("nonfinite") or repeat(0), strict=False):
            # A rank that is ahead of the one with the most buckets ends in the last bucket.
            bucket = min(bisect_left(ends, point[axis]), len(ends) - 1)
            lows[bucket].append(float(point[2]))
            highs[bucket].append(float(point[3]))
            lasts[bucket][number] = float(point[4])
            nonfinite[bucket] += count
    band = [
        [
            *point[:2],
            _ignoring_nan(min, low),
            _ignoring_nan(max, high),
            _ignoring_nan(median, list(last.values())),
        ]
        for point, low, high, last in zip(longest, lows, highs, lasts, strict=True)
    ]
    return {"points": band, **({"nonfinite": nonfinite} if any(nonfinite) else {})}


def _ignoring_nan(aggregate: Callable[[list[float]], float], values: Sequence[float]) -> float | str:
    """Return the aggregate of the values that are not NaN as JSON can hold it; NaN when all are."""
    numbers = [value for value in values if not isnan(value)]
    return json_number(float(aggregate(numbers)) if numbers else float("nan"))


def machine(
    connection: sqlite3.Connection, run: str, names: Collection[str], low: float, high: float, *, points: int
) -> list[dict[str, Any]]:
    """Return families of the machine between two Unix times: ``[0, time, min, max, last, 0, mean]``; of a *run* in its time.

    Raises:
        UnknownRunError: There is no such run.
        ValueError: A block is damaged.
    """
    stream: int | None = HOST
    if run:
        uid = reader.resolve(connection, run)
        stream, (began, ended) = machine_stream(connection, uid), reader.span(connection, uid)
        low, high = max(low, began), min(high, inf if ended is None else ended)
    if stream is None:
        return []
    tail = LogTail(connection, stream)
    found = []
    for one in series.find(connection, stream, tail):
        name = one.key.partition("{")[0]
        if name in names:
            drawn = charts.chart(connection, one, tail, Window("time", low, high), points)
            means = drawn.means or [point[4] for point in drawn.points]
            values = [[0, *point[1:], 0, mean] for point, mean in zip(drawn.points, means, strict=True)]
            if name.endswith("_total"):
                rates = growth((point[1], point[4]) for point in drawn.points)
                values = [[0, at, rate, rate, rate, 0, rate] for at, rate in rates]
            found.append({"key": one.key, "points": values})
    return [one for one in found if one["points"]]
