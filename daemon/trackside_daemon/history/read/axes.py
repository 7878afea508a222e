"""Read when a rank made its steps: from evenly spaced blocks, whatever the length of the run."""

import sqlite3
from array import array
from collections.abc import Sequence

from trackside_daemon.history.clock_moves import ClockMove, moved, moves_of_stream
from trackside_daemon.history.codec import decode_axis
from trackside_daemon.history.read.series import LogTail, StoredSeries, find
from trackside_daemon.history.schema import BLOCK_BITS

Axis = tuple["array[int]", "array[int]"]
"""Steps of consecutive samples, and their times in Unix microseconds."""

MOST_KEYS = 4096  # most series to compare: a stream may have a million
TAIL_KEYS = 64  # the same, of the log

_BLOCKS = f"FROM block WHERE id >= series.id << {BLOCK_BITS} AND id < series.id + 1 << {BLOCK_BITS} ORDER BY id"
_ENDS = (
    f"SELECT min((SELECT time_min {_BLOCKS} LIMIT 1)), max((SELECT time_max {_BLOCKS} DESC LIMIT 1)) "  # noqa: S608
    "FROM series WHERE stream = ?"
)
_FIRST_AXES = (
    "SELECT data, cells FROM axis WHERE id IN (SELECT block.axis FROM series JOIN block "  # noqa: S608
    f"ON block.id = (SELECT id {_BLOCKS} LIMIT 1) WHERE series.stream = ?)"
)
_LAST_SAMPLES = (
    f"SELECT block.step, block.time FROM series JOIN block ON block.id = (SELECT id {_BLOCKS} DESC LIMIT 1) "  # noqa: S608
    "WHERE series.stream = ?"
)


def read_axes(connection: sqlite3.Connection, stream: int, tail: LogTail, blocks: int) -> list[Axis]:
    """Return the axes of a stream's series with the most samples: of at most *blocks* of its blocks, and of the log.

    Between two axes, samples may be missing. A block without samples has the axis of its cells. If the clock was set meanwhile, the
    times before are as by the new time.

    Raises:
        ValueError: A block is damaged.
    """
    series = longest(connection, stream, tail)
    if series is None:
        return []
    first, last = series.id << BLOCK_BITS, series.id + 1 << BLOCK_BITS
    ids = [id_ for (id_,) in connection.execute("SELECT id FROM block WHERE id >= ? AND id < ?", (first, last))]
    chosen = {ids[len(ids) * number // blocks] for number in range(blocks)} if ids else set()
    query = "SELECT axis.data, axis.cells FROM block JOIN axis ON axis.id = block.axis WHERE block.id = ?"
    rows = (connection.execute(query, (id_,)).fetchone() for id_ in sorted(chosen))
    axes = [_axis(*row) for row in rows]
    fresh = tail.read(series)[:2]
    axes += [fresh] if len(fresh[0]) else []
    moves = moves_of_stream(connection, stream)
    return [(steps, moved(moves, steps, times)) for steps, times in axes] if moves else axes


def push_times(
    connection: sqlite3.Connection, stream: int, tail: LogTail, moves: Sequence[ClockMove] = ()
) -> tuple[float, float] | None:
    """Return the Unix times of the first and the last push of a stream; None without one.

    If the clock was set meanwhile, by *moves*, they are as by the new time.
    """
    if not moves:
        packed = connection.execute(_ENDS, (stream,)).fetchone()
        known = [time for time in (*packed, tail.first_time(), tail.last_time()) if time is not None]
    else:
        first = [_axis(*row) for row in connection.execute(_FIRST_AXES, (stream,))]
        pairs = [(steps[0], times[0]) for steps, times in first]
        pairs += [*connection.execute(_LAST_SAMPLES, (stream,)), *tail.ends()]
        known = list(moved(moves, [step for step, _ in pairs], array("q", [time for _, time in pairs])))
    return (min(known) / 1e6, max(known) / 1e6) if known else None


def longest(connection: sqlite3.Connection, stream: int, tail: LogTail) -> StoredSeries | None:
    """Return the series of a stream that has the most samples; None without one."""
    among = "(SELECT key, end FROM series WHERE stream = ? LIMIT ?)"
    query = f"SELECT key FROM {among} ORDER BY end DESC LIMIT 1"  # noqa: S608
    row = connection.execute(query, (stream, MOST_KEYS)).fetchone()
    keys = tail.keys()[:TAIL_KEYS] if row is None else [str(row[0])]
    found = list(find(connection, stream, tail, keys))
    return max(found, key=lambda series: series.end + len(tail.read(series)[0]), default=None)


def _axis(data: bytes | None, cells: bytes) -> Axis:
    """Return steps and times of a block; of a trimmed one those of the last sample of each cell."""
    if data is not None:
        return decode_axis(data)
    half = len(cells) // 16 * 8
    return array("q", cells[:half]), array("q", cells[half : 2 * half])
