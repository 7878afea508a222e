"""Read when a rank made its steps: from evenly spaced blocks, whatever the length of the run."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from trackside_daemon.history.read.series import find
from trackside_daemon.history.record.packing import decode_axis
from trackside_daemon.history.schema import BLOCK_BITS

if TYPE_CHECKING:
    import sqlite3

    from trackside_daemon.history.read.series import LogTail, StoredSeries

Axis = tuple["array[int]", "array[int]"]
"""Steps of consecutive samples, and their times in Unix microseconds."""

MOST_KEYS = 4096  # most series to compare: a stream may have a million
TAIL_KEYS = 64  # the same, of the log


def read_axes(connection: sqlite3.Connection, stream: int, tail: LogTail, blocks: int) -> list[Axis]:
    """Return the axes of a stream's series with the most samples: of at most *blocks* of its blocks, and of the log.

    Between two axes, samples may be missing. A block without samples has the axis of its cells.

    Raises:
        ValueError: A block is damaged.
    """
    series = _longest(connection, stream, tail)
    if series is None:
        return []
    first, last = series.id << BLOCK_BITS, series.id + 1 << BLOCK_BITS
    ids = [id_ for (id_,) in connection.execute("SELECT id FROM block WHERE id >= ? AND id < ?", (first, last))]
    chosen = {ids[len(ids) * number // blocks] for number in range(blocks)} if ids else set()
    query = "SELECT axis.data, axis.cells FROM block JOIN axis ON axis.id = block.axis WHERE block.id = ?"
    rows = (connection.execute(query, (id_,)).fetchone() for id_ in sorted(chosen))
    axes = [_cell_ends(cells) if data is None else decode_axis(data) for data, cells in rows]
    fresh = tail.read(series)[:2]
    return [*axes, fresh] if len(fresh[0]) else axes


def _longest(connection: sqlite3.Connection, stream: int, tail: LogTail) -> StoredSeries | None:
    """Return the series of a stream that has the most samples; None without one."""
    among = "(SELECT key, end FROM series WHERE stream = ? LIMIT ?)"
    query = f"SELECT key FROM {among} ORDER BY end DESC LIMIT 1"  # noqa: S608
    row = connection.execute(query, (stream, MOST_KEYS)).fetchone()
    keys = tail.keys()[:TAIL_KEYS] if row is None else [str(row[0])]
    found = list(find(connection, stream, tail, keys))
    return max(found, key=lambda series: series.end + len(tail.read(series)[0]), default=None)


def _cell_ends(cells: bytes) -> Axis:
    """Return steps and times of the last sample of each cell."""
    half = len(cells) // 16 * 8
    return array("q", cells[:half]), array("q", cells[half : 2 * half])
