"""Series in API responses: charts in buckets, and streams of every sample."""

from __future__ import annotations

from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.exceptions import HTTPException

from trackside_daemon.history.files.selection import Selection, missing_keys
from trackside_daemon.history.read import charts, reader, series
from trackside_daemon.history.read.series import LogTail, StoredSeries, Window
from trackside_daemon.model.metric import json_number
from trackside_daemon.web.api.query_params import parse_integer, parse_window

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.datastructures import QueryParams

    from trackside_daemon.history.database import Database
    from trackside_daemon.history.read.reader import RunSeries

MAX_SERIES = 1000  # series in one response
MAX_BAND_SERIES = 8192  # series from which bands are made, such as eight keys of a thousand ranks
MAX_BUCKETS = 200_000  # buckets in one response, over all its series

_encode = msgspec.json.Encoder().encode


def find_series(connection: Any, names: list[str], params: QueryParams) -> list[RunSeries]:
    """Return the series that a request selects.

    Args:
        connection: The history.
        names: Ids or names of the runs.
        params: The request's ``key``, ``rank``, ``ranks`` and ``attempt``.

    Raises:
        HTTPException: Status 400 when there are more than `MAX_SERIES`, or `MAX_BAND_SERIES` for a band.
    """
    keys = params.getlist("key") or None
    ranks, attempt = _ranks(params)
    most = MAX_SERIES
    if params.get("ranks") == "band":
        ranks, most = ranks or [], MAX_BAND_SERIES
    found = (
        series
        for uid in dict.fromkeys(reader.resolve(connection, name) for name in names)
        for series in reader.series(connection, uid, keys, ranks, attempt)
    )
    selected = list(islice(found, most + 1))
    if len(selected) > most:
        raise HTTPException(400, f"more than {most} series; name keys, ranks or an attempt")
    return selected


def export_selection(database: Database, uid: str, params: QueryParams) -> Selection:
    """Return the part of a run that an export selects; without ``rank`` all ranks, so that a file is complete.

    Raises:
        HTTPException: Status 404 when the run has no such rank, attempt or key.
    """
    ranks, attempt = _ranks(params)
    selection = Selection(
        tuple(dict.fromkeys(params.getlist("key"))),
        frozenset(ranks or ()),
        attempt,
        parse_window(params),
        params.get("resources") == "true",
    )
    of = ", ".join([*(f"rank {rank}" for rank in ranks or ()), *([] if attempt is None else [f"attempt {attempt}"])])
    missing = missing_keys(database, uid, selection) if selection.keys or of else []
    if missing is None:
        raise HTTPException(404, f"run {uid!r} has no samples" + (of and f" of {of}"))
    for key in missing:
        raise HTTPException(404, f"key {key!r}: run {uid!r} has no such key" + (of and f" for {of}"))
    return selection


def _ranks(params: QueryParams) -> tuple[list[int] | None, int | None]:
    """Return the requested ranks and attempt; ranks are empty for all, None when not given."""
    ranks = params.getlist("rank")
    try:
        selected = None if not ranks else [] if ranks == ["all"] else [parse_integer(rank) for rank in ranks]
        return selected, parse_integer(params["attempt"]) if "attempt" in params else None
    except ValueError:
        raise HTTPException(400, "rank and attempt must be numbers; use rank=all for every rank") from None


def read_charts(
    database: Database, selected: list[RunSeries], window: Window, points: int, *, means: bool = False
) -> list[dict[str, Any]]:
    """Return one chart per series, each with at most *points* buckets ``[step, time, min, max, last]``.

    With *means*, a chart whose buckets have several samples also has their ``means``.
    """
    result = []
    for selected_series in selected:
        # One read transaction per series: the WAL cannot shrink while a transaction is open.
        with database.reading() as connection:
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
    old = selected.series
    packed = connection.execute("SELECT id, packed FROM series WHERE stream = ? AND key = ?", old[:2]).fetchone()
    if (packed or (0, 0)) == (old.id, old.packed):
        return selected
    tail = LogTail(connection, old.stream)
    current = next(series.find(connection, old.stream, tail, [old.key]), StoredSeries(*old[:2]))
    return selected._replace(series=current, tail=tail)


def _run_window(connection: Any, selected: RunSeries, window: Window) -> Window:
    """Limit a window on host and GPU series to the run's time: they have no steps and exist outside the run."""
    if selected.rank is not None:
        return window
    began, ended = reader.span(connection, reader.resolve(connection, selected.run))
    low, high = (window.low, window.high) if window.by == "time" else (-inf, inf)
    return Window("time", max(low, began), min(high, inf if ended is None else ended))


def stream_series(database: Database, selected: list[RunSeries], window: Window) -> Iterator[bytes]:
    """Yield ``{"series": […]}`` with every sample, in pieces."""
    yield b'{"series":['
    for number, one_series in enumerate(selected):
        # Without the closing brace, because the points are streamed as the last field of the object.
        yield (b"," if number else b"") + _encode(_identity(one_series))[:-1] + b',"points":['
        yield from _sample_blocks(database, [one_series], window)
        yield b"]}"
    yield b"]}"


def stream_points(database: Database, selected: list[RunSeries], window: Window) -> Iterator[bytes]:
    """Yield ``{"key": …, "points": […]}`` with every sample of several attempts, in pieces."""
    yield b'{"key":' + _encode(selected[0].series.key) + b',"points":['
    yield from _sample_blocks(database, selected, window)
    yield b"]}"


def _sample_blocks(database: Database, selected: list[RunSeries], window: Window) -> Iterator[bytes]:
    """Yield every sample in the window as ``[step, time, value]``, one block of samples at a time."""
    first = True
    for one_series in selected:
        with database.reading() as connection:
            limited = _run_window(connection, one_series, window)
        for steps, times, values in series.samples(database, one_series.series, window=limited):
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
