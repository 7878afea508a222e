"""Read the last samples of live ranks, so that detectors can continue from them."""

import json
import sqlite3
from array import array
from collections.abc import Callable
from typing import NamedTuple

from trackside.roles import usable
from trackside.wire import Identity
from trackside_daemon.history.clock_moves import moved, moves_of_stream
from trackside_daemon.history.codec import BLOCK
from trackside_daemon.history.read.series import LogTail, StoredSeries, find, rest_of_block

Samples = tuple["array[int]", "array[int]", "array[float]"]
"""Steps, times in Unix microseconds, values."""


class LiveStream(NamedTuple):
    """A rank of an attempt that has not ended, and what it has stated: roles of keys, and the number of steps."""

    id: int
    identity: Identity
    roles: dict[str, str]
    total_steps: int | None


def live_streams(connection: sqlite3.Connection, limit: int) -> list[LiveStream]:
    """Return the ranks of attempts that have not ended: newest runs first, then lowest ranks."""
    rows = connection.execute(
        "SELECT stream.id, run.uid, run.name, attempt.number, stream.rank, attempt.about FROM attempt "
        "JOIN run ON run.id = attempt.run JOIN stream ON stream.run = run.id AND stream.attempt = attempt.number "
        "WHERE attempt.ended IS NULL AND NOT run.deleted ORDER BY run.id DESC, attempt.number DESC, stream.rank LIMIT ?",
        (limit,),
    )
    return [
        LiveStream(
            stream,
            Identity(uid, name, attempt, rank, world=stored.get("world_size", 1)),
            usable(stored.get("roles")),
            stored.get("total_steps"),
        )
        for stream, uid, name, attempt, rank, about in rows
        for stored in [json.loads(about or "{}") or {}]
    ]


def last_samples(
    connection: sqlite3.Connection, stream: int, wanted: Callable[[str], object], count: int
) -> dict[str, Samples]:
    """Return, by key, the last *count* samples of each series of a stream that *wanted* accepts.

    If the clock was set meanwhile, the times before are as by the new time.

    Raises:
        ValueError: A block is damaged.
    """
    tail = LogTail(connection, stream)
    samples = {
        series.key: _last(connection, series, tail, count)
        for series in find(connection, stream, tail)
        if wanted(series.key)
    }
    moves = moves_of_stream(connection, stream)
    return {key: (steps, moved(moves, steps, times), values) for key, (steps, times, values) in samples.items()}


def _last(connection: sqlite3.Connection, series: StoredSeries, tail: LogTail, count: int) -> Samples:
    """Read backwards from the end of the series, block by block."""
    steps, times, values = tail.read(series)
    number = -(-series.end // BLOCK) - 1  # the last block, also if it is not full
    while len(steps) < count and number >= 0:
        before = rest_of_block(connection, series, number * BLOCK)[1]
        if not len(before[0]):  # trimmed: only its extremes are left
            break
        steps, times, values = before[0] + steps, before[1] + times, before[2] + values
        number -= 1
    return steps[-count:], times[-count:], values[-count:]
