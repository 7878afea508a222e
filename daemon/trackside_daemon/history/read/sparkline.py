"""Read the curve of a key in few points, fast enough for many runs at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.history import log_rows
from trackside_daemon.history.read.charts import chart
from trackside_daemon.history.read.series import EVERYTHING, LogTail, StoredSeries
from trackside_daemon.history.schema import LOG_BITS

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence


def sparkline(
    connection: sqlite3.Connection, place: tuple[str, int, int], keys: Sequence[str], count: int
) -> list[tuple[int, float]]:
    """Return rising steps and their values: about *count* points of the packed samples, and as many of the log.

    Args:
        connection: In a transaction.
        place: Run id, attempt number and rank.
        keys: Candidates; the first one with samples is used.
        count: The number of points.

    Raises:
        ValueError: A block is damaged.
    """
    stream_row = connection.execute(
        "SELECT stream.id FROM stream JOIN run ON run.id = stream.run "
        "WHERE run.uid = ? AND NOT run.deleted AND stream.attempt = ? AND stream.rank = ?",
        place,
    ).fetchone()
    for key in keys if stream_row is not None else ():
        stream = stream_row[0]
        row = connection.execute(
            "SELECT stream, key, id, packed, end FROM series WHERE stream = ? AND key = ?", (stream, key)
        ).fetchone()
        series = StoredSeries(stream, key) if row is None else StoredSeries(*row)
        packed = chart(connection, series, LogTail(None, stream), EVERYTHING, count).points if row else []
        points = [(int(step), last) for step, _, _, _, last in packed] + _log_points(connection, series, count)
        if points:
            return _rising(points)
    return []


def _log_points(connection: sqlite3.Connection, series: StoredSeries, count: int) -> list[tuple[int, float]]:
    """Return the last push of about *count* log rows that are not packed, evenly spaced up to the newest."""
    base = series.stream << LOG_BITS
    first, last = connection.execute(
        "SELECT min(id), max(id) FROM log WHERE id > ? AND id < ?", (base + series.packed, base + (1 << LOG_BITS))
    ).fetchone()
    if first is None:
        return []
    every = max(1, (last - first) // count)
    chosen = connection.execute(
        "SELECT data FROM log WHERE id BETWEEN ? AND ? AND (? - id) % ? = 0 ORDER BY id", (first, last, last, every)
    )
    return [point for (data,) in chosen if (point := log_rows.last_push(data, series.key)) is not None]


def _rising(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Drop the points whose step falls, as after a resume from a checkpoint."""
    rising: list[tuple[int, float]] = []
    for point in points:
        if not rising or point[0] > rising[-1][0]:
            rising.append(point)
    return rising
