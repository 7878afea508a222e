"""The course of a key in few points, read fast: whoever shows many runs at once has no time for all samples of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.history import rows
from trackside_daemon.history.read.charts import chart
from trackside_daemon.history.read.series import EVERYTHING, LogTail, StoredSeries
from trackside_daemon.history.schema import LOG_BITS

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence


def sparkline(
    connection: sqlite3.Connection, place: tuple[str, int, int], keys: Sequence[str], count: int
) -> list[tuple[int, float]]:
    """Steps that rise and the values at them, about *count* of what is packed and as many of what is not.

    Args:
        connection: In a transaction.
        place: A run's id, the number of an attempt and a rank.
        keys: Of which the first counts that is there.
        count: How many are wanted.

    Raises:
        ValueError: A block is damaged.
    """
    found = connection.execute(
        "SELECT stream.id FROM stream JOIN run ON run.id = stream.run "
        "WHERE run.uid = ? AND NOT run.deleted AND stream.attempt = ? AND stream.rank = ?",
        place,
    ).fetchone()
    for key in keys if found is not None else ():
        stream = found[0]
        row = connection.execute(
            "SELECT stream, key, id, packed, end FROM series WHERE stream = ? AND key = ?", (stream, key)
        ).fetchone()
        series = StoredSeries(stream, key) if row is None else StoredSeries(*row)
        packed = chart(connection, series, LogTail(None, stream), EVERYTHING, count).points if row else []
        points = [(int(step), last) for step, _, _, _, last in packed] + _fresh(connection, series, count)
        if points:
            return _rising(points)
    return []


def _fresh(connection: sqlite3.Connection, series: StoredSeries, count: int) -> list[tuple[int, float]]:
    """The last of some log rows that are not packed, from the first to the newest."""
    base = series.stream << LOG_BITS
    first, last = connection.execute(
        "SELECT min(id), max(id) FROM log WHERE id > ? AND id < ?", (base + series.packed, base + (1 << LOG_BITS))
    ).fetchone()
    if first is None:
        return []
    every = max(1, (last - first) // count)
    found = connection.execute(
        "SELECT data FROM log WHERE id BETWEEN ? AND ? AND (? - id) % ? = 0 ORDER BY id", (first, last, last, every)
    )
    return [point for (data,) in found if (point := rows.last_push(data, series.key)) is not None]


def _rising(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Without those that step back, as those of an attempt that went back to a checkpoint."""
    kept: list[tuple[int, float]] = []
    for one in points:
        if not kept or one[0] > kept[-1][0]:
            kept.append(one)
    return kept
