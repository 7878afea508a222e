"""Read series: the list of them, their samples in the log, and every sample block by block."""

from __future__ import annotations

import sqlite3
from array import array
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from itertools import compress
from math import inf, isinf
from operator import itemgetter
from typing import Any, Literal, NamedTuple, Protocol

from trackside_daemon.history import codec, log_rows
from trackside_daemon.history.codec import BLOCK, decode_axis
from trackside_daemon.history.schema import BLOCK_BITS, LOG_BITS

By = Literal["step", "time"]
LOSSES = ("loss", "train/loss", "train_loss", "loss/train", "Loss/train", "train/batch_loss", "train/epoch_loss")
"""Keys of a run's loss in lists of runs, the first one that it has; the last is that of PyTorch's tutorial of TensorBoard."""


class Readable(Protocol):
    """A history that can be read: a `Database`, or `Offline` without a daemon."""

    def reading(self) -> AbstractContextManager[sqlite3.Connection]:
        """Open a snapshot of the history."""
        ...


class StoredSeries(NamedTuple):
    """A series in the history."""

    stream: int  # the id of its stream
    key: str
    id: int = 0  # its row; 0 while all of it is in the log
    packed: int = 0  # the last log row of its stream that is in its blocks
    end: int = 0  # the place of the next sample in its blocks


class Window(NamedTuple):
    """A range of steps or of Unix seconds, including both ends."""

    by: By = "step"
    low: float = -inf
    high: float = inf

    @property
    def bounds(self) -> tuple[float, float]:
        """The ends in the unit of the columns: steps, or microseconds."""
        if self.by == "step":
            return self.low, self.high
        low, high = (end if isinf(end) else round(end * 1_000_000) for end in (self.low, self.high))
        return low, high

    @property
    def whole(self) -> bool:
        """True if the window is unlimited."""
        return self.low == -inf and self.high == inf


EVERYTHING = Window()


class LogTail:
    """The samples of a stream that are still in the log.

    Args:
        connection: In a transaction; None to read nothing until `refresh`.
        stream: The stream's id.
        newest: Most rows to read, the newest ones; None for all.
    """

    def __init__(self, connection: sqlite3.Connection | None, stream: int, newest: int | None = None) -> None:
        self._stream = stream
        self._newest = newest
        self._rows = log_rows.LogRows()
        self._before = 0
        self._last = 0
        if connection is not None:
            self.refresh(connection)

    def refresh(self, connection: sqlite3.Connection) -> None:
        """Read the rows that arrived since the last call. Rows that were packed meanwhile may stay in memory."""
        base, end = self._stream << LOG_BITS, self._stream + 1 << LOG_BITS
        extent = "SELECT min(id), max(id) FROM log WHERE id >= ? AND id < ?"
        first, last = connection.execute(extent, (base, end)).fetchone()
        before = self._last if first is None else first - base - 1
        if last is not None and self._newest is not None:
            before = max(before, last - base - self._newest)
        if 2 * (before - self._before) > self._last - self._before:  # most of it is packed
            self._rows = log_rows.LogRows()
            self._before = before
            self._last = before
        new = connection.execute(
            "SELECT id, shift, data FROM log WHERE id > ? AND id < ? ORDER BY id", (base + self._last, end)
        )
        for id_, shift, data in new:
            self._rows.add(id_ - base, data, shift)
            self._last = id_ - base

    def keys(self) -> list[str]:
        """Return the keys in the log."""
        return self._rows.keys()

    def read(self, series: StoredSeries) -> tuple[array[int], array[int], array[float]]:
        """Return steps, times in microseconds and values of a series, without those that are packed."""
        steps, times, values = array("q"), array("q"), array("d")
        for number, column in self._rows.places(series.key, series.packed):
            part = self._rows.parts[number][1]
            steps += part.steps
            times += part.times
            values += part.column(column)
        return steps, times, values

    def first_time(self) -> int | None:
        """Return the earliest time in microseconds; None if the log is empty."""
        return min((time for _, part in self._rows.parts for time in part.times), default=None)

    def last_time(self) -> int | None:
        """Return the latest time in microseconds; None if the log is empty."""
        return max((time for _, part in self._rows.parts for time in part.times), default=None)

    def ends(self) -> list[tuple[int, int]]:
        """Return step and time of the first and the last push of each group of pushes."""
        return [(part.steps[at], part.times[at]) for _, part in self._rows.parts for at in (0, -1)]

    def highest(self) -> int | None:
        """Return the highest step; None if the log is empty."""
        return max((step for _, part in self._rows.parts for step in part.steps), default=None)


class LogTails(dict[int, LogTail]):
    """The logs of streams by their ids, each read once.

    Args:
        connection: In a transaction.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __missing__(self, stream: int) -> LogTail:
        tail = self[stream] = LogTail(self._connection, stream)
        return tail


def find(
    connection: sqlite3.Connection, stream: int, tail: LogTail, keys: Collection[str] | None = None
) -> Iterator[StoredSeries]:
    """Yield the series of a stream in the order in which they began; only those of *keys*, if given.

    A stream may have a million keys, so do not keep all of them.
    """
    query = "SELECT stream, key, id, packed, end FROM series WHERE stream = ?"
    fresh = dict.fromkeys(tail.keys())
    if keys is None:
        rows: Iterable[tuple[Any, ...]] = connection.execute(f"{query} ORDER BY id", (stream,))
    else:
        wanted = dict.fromkeys(keys)
        fresh = {key: None for key in fresh if key in wanted}
        found = (connection.execute(f"{query} AND key = ?", (stream, key)).fetchone() for key in wanted)
        rows = sorted(filter(None, found), key=itemgetter(2))
    for row in rows:
        fresh.pop(row[1], None)
        yield StoredSeries(*row)
    for key in fresh:
        yield StoredSeries(stream, key)


def run_streams(connection: sqlite3.Connection, uid: str, attempt: int | None = None) -> list[tuple[int, int, int]]:
    """Return id, attempt and rank of each stream of a run, by attempt and rank; only those of an attempt, if one is given."""
    return connection.execute(
        "SELECT stream.id, stream.attempt, stream.rank FROM stream JOIN run ON run.id = stream.run "
        "WHERE run.uid = ? AND NOT run.deleted AND (? IS NULL OR stream.attempt = ?) ORDER BY stream.attempt, stream.rank",
        (uid, attempt, attempt),
    ).fetchall()


def count(connection: sqlite3.Connection, stream: int, tail: LogTail) -> int:
    """Return the number of series of a stream."""
    stored = "SELECT 1 FROM series WHERE stream = ? AND key = ?"
    fresh = sum(connection.execute(stored, (stream, key)).fetchone() is None for key in tail.keys())  # noqa: SIM118  not a dict
    return int(connection.execute("SELECT count(*) FROM series WHERE stream = ?", (stream,)).fetchone()[0]) + fresh


def samples(
    database: Readable,
    series: StoredSeries,
    tail: LogTail | None = None,
    window: Window = EVERYTHING,
    place: int = 0,
) -> Iterator[tuple[array[int], array[int], array[float]]]:
    """Yield the samples of a series in a window, block by block: steps, times in microseconds, values.

    Each sample comes once, also if it is packed meanwhile.

    Args:
        database: Read while the samples are iterated over.
        series: The series.
        tail: The log of its stream; share it between the series of a stream, so that the log is read once.
        window: Blocks outside it are not read.
        place: Index of the first sample; those before it are not read.

    Raises:
        ValueError: A block is damaged.
    """
    tail = tail or LogTail(None, series.stream)
    while True:
        # A transaction for each block: a slow caller must not keep the WAL from shrinking.
        with database.reading() as connection:
            series = reload(connection, series)
            if place < series.end:
                place, columns = rest_of_block(connection, series, place, window)
            else:
                tail.refresh(connection)
                steps, times, values = tail.read(series)
                skipped = place - series.end
                place += len(steps) - skipped
                columns = steps[skipped:], times[skipped:], values[skipped:]
                if not len(columns[0]):
                    return
        columns = cut(*columns, window)
        if len(columns[0]):
            yield columns


def last(
    connection: sqlite3.Connection, series: StoredSeries, tail: LogTail, count: int
) -> tuple[array[int], array[int], array[float]]:
    """Return the last *count* samples of a series or fewer, since they come from the log and at most one block.

    They are steps, times in microseconds and values.

    Raises:
        ValueError: The block is damaged.
    """
    columns = tail.read(series)
    missing = count - len(columns[0])
    if missing > 0 and series.end:
        place = max(0, series.end - missing, (series.end - 1) // BLOCK * BLOCK)
        before = rest_of_block(connection, series, place)[1]
        columns = before[0] + columns[0], before[1] + columns[1], before[2] + columns[2]
    steps, times, values = columns
    return steps[-count:], times[-count:], values[-count:]


def first(
    connection: sqlite3.Connection, series: StoredSeries, tail: LogTail
) -> tuple[array[int], array[int], array[float]]:
    """Return the first samples of a series, those of one block at most, in the form of `last`.

    Raises:
        ValueError: The block is damaged.
    """
    return rest_of_block(connection, series, 0)[1] if series.end else tail.read(series)


def by_id(connection: sqlite3.Connection, ids: Iterable[int]) -> Iterator[StoredSeries]:
    """Yield the packed series that are left of some ids."""
    query = "SELECT stream, key, id, packed, end FROM series WHERE id = ?"
    return (StoredSeries(*row) for id_ in ids for row in connection.execute(query, (id_,)))


def reload(connection: sqlite3.Connection, series: StoredSeries) -> StoredSeries:
    """Return a series as it is now, since part of it may have been packed."""
    row = connection.execute(
        "SELECT stream, key, id, packed, end FROM series WHERE stream = ? AND key = ?", (series.stream, series.key)
    ).fetchone()
    return StoredSeries(series.stream, series.key) if row is None else StoredSeries(*row)


def rest_of_block(
    connection: sqlite3.Connection, series: StoredSeries, place: int, window: Window = EVERYTHING
) -> tuple[int, tuple[array[int], array[int], array[float]]]:
    """Return the place after the block of *place*, and the rest of the block, empty if it is gone or outside."""
    number = place // BLOCK
    row = connection.execute(
        "SELECT block.data, axis.data FROM block JOIN axis ON axis.id = block.axis "  # noqa: S608
        f"WHERE block.id = ? AND {window.by}_max >= ? AND {window.by}_min <= ?",
        (series.id << BLOCK_BITS | number, *window.bounds),
    ).fetchone()
    after = min((number + 1) * BLOCK, series.end)
    if row is None or row[0] is None:
        return after, (array("q"), array("q"), array("d"))
    steps, times, values = decode(row[1], row[0])
    skipped = place % BLOCK
    return after, (steps[skipped:], times[skipped:], values[skipped:])


def decode(axis: bytes, data: bytes) -> tuple[array[int], array[int], array[float]]:
    """Return the samples of a block: steps, times in microseconds, values.

    Raises:
        ValueError: The bytes are damaged.
    """
    steps, times = decode_axis(axis)
    values = codec.decode_values(data)
    if not len(steps) == len(times) == len(values):
        raise ValueError(f"a damaged block: {len(steps)} steps, {len(times)} times, {len(values)} values")
    return steps, times, values


def cut(
    steps: array[int], times: array[int], values: array[float], window: Window
) -> tuple[array[int], array[int], array[float]]:
    """Return the samples that are in a window."""
    if window.whole or not len(steps):
        return steps, times, values
    low, high = window.bounds
    by = steps if window.by == "step" else times
    least, most = min(by), max(by)
    if low <= least and most <= high:
        return steps, times, values
    if most < low or least > high:
        return array("q"), array("q"), array("d")
    inside = [low <= at <= high for at in by]
    return (
        array("q", compress(steps, inside)),
        array("q", compress(times, inside)),
        array("d", compress(values, inside)),
    )
