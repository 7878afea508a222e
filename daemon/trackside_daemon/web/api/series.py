"""What is answered of series: charts, and every sample as it is read."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.exceptions import HTTPException

from trackside_daemon.history.files.export import Part, lacking
from trackside_daemon.history.read import charts, reader, series
from trackside_daemon.history.read.series import Series, Tail, Window
from trackside_daemon.model.metric import json_number
from trackside_daemon.web.api.query_params import whole, window

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.datastructures import QueryParams

    from trackside_daemon.history.database import Database
    from trackside_daemon.history.read.reader import Found

MOST_SERIES = 1000
MOST_BUCKETS = 200_000
"""One question answers at most so many series, and buckets of all of them together."""

_encode = msgspec.json.Encoder().encode


def find(connection: Any, names: list[str], asked: QueryParams) -> list[Found]:
    """The series that a question means."""
    keys = asked.getlist("key") or None
    wanted, attempt = _ranks(asked)
    if wanted is None and asked.get("ranks") == "band":
        wanted = []
    found = [
        one
        for uid in dict.fromkeys(reader.resolve(connection, name) for name in names)
        for one in reader.series(connection, uid, keys, wanted, attempt)
    ]
    if len(found) > MOST_SERIES:
        raise HTTPException(400, f"{len(found)} series are more than {MOST_SERIES}; name keys, ranks or an attempt")
    return found


def part(database: Database, uid: str, asked: QueryParams) -> Part:
    """What of a run an export means: without ``rank`` all ranks, since nothing is to be missing from a file."""
    ranks, attempt = _ranks(asked)
    meant = Part(tuple(dict.fromkeys(asked.getlist("key"))), frozenset(ranks or ()), attempt, window(asked))
    of = ", ".join([*(f"rank {rank}" for rank in ranks or ()), *([] if attempt is None else [f"attempt {attempt}"])])
    missing = lacking(database, uid, meant) if meant.keys or of else []
    if missing is None:
        raise HTTPException(404, f"run {uid!r} has nothing" + (of and f" of {of}"))
    for key in missing:
        raise HTTPException(404, f"key {key!r}: run {uid!r} has none of that name" + (of and f" of {of}"))
    return meant


def _ranks(asked: QueryParams) -> tuple[list[int] | None, int | None]:
    """The ranks that a question names, empty for all, None when it names none; and the attempt."""
    ranks = asked.getlist("rank")
    try:
        named = None if not ranks else [] if ranks == ["all"] else [whole(rank) for rank in ranks]
        return named, whole(asked["attempt"]) if "attempt" in asked else None
    except ValueError:
        raise HTTPException(400, "rank and attempt are numbers; rank=all for every rank") from None


def drawn(database: Database, found: list[Found], window: Window, points: int) -> list[dict[str, Any]]:
    """Each in a view of its own, since the WAL cannot shrink meanwhile."""
    made = []
    for each in found:
        with database.reading() as connection:
            one = _again(connection, each)
            chart = charts.chart(connection, one.series, one.tail, _of_run(connection, one, window), points)
        made.append(
            {
                **_named(one),
                "samples": chart.samples,
                "unit": chart.unit,
                "trimmed": chart.trimmed,
                "points": [_point(point) for point in chart.points],
                **({"nonfinite": chart.nonfinite} if chart.nonfinite else {}),
            }
        )
    return made


def behind(charts: list[dict[str, Any]]) -> dict[str, Any]:
    """Charts of several attempts as one, ``points`` and perhaps ``nonfinite``; *charts* as `drawn` has them."""
    odd = [count for one in charts for count in one.get("nonfinite", [0] * len(one["points"]))]
    points = [point for one in charts for point in one["points"]]
    return {"points": points, **({"nonfinite": odd} if any(odd) else {})}


def _again(connection: Any, one: Found) -> Found:
    """The series as it is now, if some of its tail was packed since it was found."""
    packed = connection.execute("SELECT id, packed FROM series WHERE stream = ? AND key = ?", one.series[:2]).fetchone()
    if (packed or (0, 0)) == (one.series.id, one.series.packed):
        return one
    tail = Tail(connection, one.series.stream)
    now = series.find(connection, one.series.stream, tail, [one.series.key])
    return one._replace(series=now[0] if now else Series(*one.series[:2]), tail=tail)


def _of_run(connection: Any, one: Found, window: Window) -> Window:
    """A window of the machine's series: those have no steps, and go on before and after the run."""
    if one.rank is not None:
        return window
    began, ended = reader.span(connection, reader.resolve(connection, one.run))
    low, high = (window.low, window.high) if window.by == "time" else (-inf, inf)
    return Window("time", max(low, began), min(high, inf if ended is None else ended))


def stream(database: Database, found: list[Found], window: Window) -> Iterator[bytes]:
    """``{"series": […]}`` with every sample, piece by piece."""
    yield b'{"series":['
    for number, one in enumerate(found):
        yield (b"," if number else b"") + _encode(_named(one))[:-1] + b',"points":['
        yield from _pieces(database, [one], window)
        yield b"]}"
    yield b"]}"


def stream_points(database: Database, found: list[Found], window: Window) -> Iterator[bytes]:
    """``{"key": …, "points": […]}`` with every sample of several attempts, piece by piece."""
    yield b'{"key":' + _encode(found[0].series.key) + b',"points":['
    yield from _pieces(database, found, window)
    yield b"]}"


def _pieces(database: Database, found: list[Found], window: Window) -> Iterator[bytes]:
    """Every sample in the window as ``[step, time, value]``, a block at a time."""
    first = True
    for one in found:
        with database.reading() as connection:
            wanted = _of_run(connection, one, window)
        for steps, times, values in series.samples(database, one.series, window=wanted):
            rows = [
                (step, time / 1e6, json_number(value)) for step, time, value in zip(steps, times, values, strict=True)
            ]
            yield (b"" if first else b",") + _encode(rows)[1:-1]
            first = False


def _named(one: Found) -> dict[str, Any]:
    return {"run": one.run, "attempt": one.attempt, "rank": one.rank, "key": one.series.key}


def _point(point: list[float]) -> list[float | str]:
    step, moment, *values = point
    return [step, moment, *map(json_number, values)]
