"""The last samples of ranks that train still, for whoever has to go on from there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from trackside.wire import Identity
from trackside_daemon.history.codec import BLOCK
from trackside_daemon.history.read.series import LogTail, decode, find
from trackside_daemon.history.schema import BLOCK_BITS

if TYPE_CHECKING:
    import sqlite3
    from array import array
    from collections.abc import Callable

    from trackside_daemon.history.read.series import StoredSeries

Samples = tuple["array[int]", "array[int]", "array[float]"]
"""Steps, times in microseconds of Unix time, and values."""


def live_streams(connection: sqlite3.Connection, limit: int) -> list[tuple[int, Identity]]:
    """The streams of attempts that have not ended, and whose each is: the newest runs first, of each the lowest ranks."""
    found = connection.execute(
        "SELECT stream.id, run.uid, run.name, attempt.number, stream.rank, attempt.about FROM attempt "
        "JOIN run ON run.id = attempt.run JOIN stream ON stream.run = run.id AND stream.attempt = attempt.number "
        "WHERE attempt.ended IS NULL AND NOT run.deleted ORDER BY run.id DESC, attempt.number DESC, stream.rank LIMIT ?",
        (limit,),
    )
    return [
        (stream, Identity(uid, name, attempt, rank, world=(json.loads(about or "{}") or {}).get("world_size", 1)))
        for stream, uid, name, attempt, rank, about in found
    ]


def last_samples(
    connection: sqlite3.Connection, stream: int, wanted: Callable[[str], object], count: int
) -> dict[str, Samples]:
    """The last *count* samples of each series of a stream whose key is *wanted*.

    Raises:
        ValueError: A block is damaged.
    """
    tail = LogTail(connection, stream)
    return {one.key: _last(connection, one, tail, count) for one in find(connection, stream, tail) if wanted(one.key)}


def _last(connection: sqlite3.Connection, series: StoredSeries, tail: LogTail, count: int) -> Samples:
    """From its end backwards, block by block."""
    steps, times, values = tail.read(series)
    number = -(-series.end // BLOCK) - 1
    while len(steps) < count and number >= 0:
        found = connection.execute(
            "SELECT axis.data, block.data FROM block JOIN axis ON axis.id = block.axis WHERE block.id = ?",
            (series.id << BLOCK_BITS | number,),
        ).fetchone()
        if found is None or found[1] is None:  # thinned out: only its extremes are left
            break
        before = decode(*found)
        steps, times, values = before[0] + steps, before[1] + times, before[2] + values
        number -= 1
    return steps[-count:], times[-count:], values[-count:]
