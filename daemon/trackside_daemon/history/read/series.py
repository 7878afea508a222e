"""Reads series: which there are, what of them is in the log still, and every sample one by one."""

from __future__ import annotations

from array import array
from itertools import compress
from math import inf, isinf
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from trackside_daemon.history import codec, rows
from trackside_daemon.history.codec import BLOCK
from trackside_daemon.history.record.packing import decode_axis
from trackside_daemon.history.schema import BLOCK_BITS, LOG_BITS

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

By = Literal["step", "time"]
LOSSES = ("loss", "train/loss", "train_loss")
"""The keys that a run's loss in a list of runs is taken from."""


class Readable(Protocol):
    """A history that can be read: a `Database`, or the file without a daemon."""

    def reading(self) -> AbstractContextManager[sqlite3.Connection]:
        """One moment's view of it."""
        ...


class StoredSeries(NamedTuple):
    """One series.

    Attributes:
        id: Its row; 0 when all of it is in the log still.
        packed: The last log row of its stream that is in blocks, and *end* the place of the next sample there.
    """

    stream: int
    key: str
    id: int = 0
    packed: int = 0
    end: int = 0


class Window(NamedTuple):
    """What part of a series is asked for: steps, or Unix seconds; both ends belong to it."""

    by: By = "step"
    low: float = -inf
    high: float = inf

    @property
    def bounds(self) -> tuple[float, float]:
        """In the unit of the column: steps, or microseconds."""
        if self.by == "step":
            return self.low, self.high
        low, high = (one if isinf(one) else round(one * 1_000_000) for one in (self.low, self.high))
        return low, high

    @property
    def whole(self) -> bool:
        """Everything is asked for."""
        return self.low == -inf and self.high == inf


EVERYTHING = Window()


class LogTail:
    """What of a stream is in the log still.

    Args:
        connection: In a transaction; None to read nothing before `refresh`.
        stream: Its id.
    """

    def __init__(self, connection: sqlite3.Connection | None, stream: int) -> None:
        self._stream = stream
        self._rows = rows.LogRows()
        self._before = self._last = 0
        if connection is not None:
            self.refresh(connection)

    def refresh(self, connection: sqlite3.Connection) -> None:
        """Read what has come since; what was packed meanwhile may stay, and a series' ``packed`` tells."""
        base, end = self._stream << LOG_BITS, self._stream + 1 << LOG_BITS
        found = connection.execute("SELECT min(id) FROM log WHERE id >= ? AND id < ?", (base, end)).fetchone()[0]
        before = self._last if found is None else found - base - 1
        if 2 * (before - self._before) > self._last - self._before:  # most of it is packed
            self._rows = rows.LogRows()
            self._before = self._last = before
        new = connection.execute(
            "SELECT id, shift, data FROM log WHERE id > ? AND id < ? ORDER BY id", (base + self._last, end)
        )
        for id_, shift, data in new:
            self._rows.add(id_ - base, data, shift)
            self._last = id_ - base

    def keys(self) -> list[str]:
        """The keys in it."""
        return self._rows.keys()

    def read(self, series: StoredSeries) -> tuple[array[int], array[int], array[float]]:
        """Steps, times in microseconds and values of a series."""
        steps, times, values = array("q"), array("q"), array("d")
        for number, column in self._rows.places(series.key, series.packed):
            part = self._rows.parts[number][1]
            steps += part.steps
            times += part.times
            values += part.column(column)
        return steps, times, values

    def last_time(self) -> int | None:
        """The latest of its times, in microseconds."""
        return max((time for _, part in self._rows.parts for time in part.times), default=None)

    def highest(self) -> int | None:
        """The highest of its steps."""
        return max((step for _, part in self._rows.parts for step in part.steps), default=None)


def find(
    connection: sqlite3.Connection, stream: int, tail: LogTail, keys: Sequence[str] | None = None
) -> list[StoredSeries]:
    """The series of a stream, in the order in which they began; only those of *keys* when given."""
    found = connection.execute(
        "SELECT stream, key, id, packed, end FROM series WHERE stream = ? ORDER BY id", (stream,)
    )
    known = {row[1]: StoredSeries(*row) for row in found}
    for key in tail.keys():  # noqa: SIM118  not a dict
        known.setdefault(key, StoredSeries(stream, key))
    wanted = known.keys() if keys is None else set(keys)
    return [series for key, series in known.items() if key in wanted]


def samples(
    database: Readable, series: StoredSeries, tail: LogTail | None = None, window: Window = EVERYTHING
) -> Iterator[tuple[array[int], array[int], array[float]]]:
    """Every sample that is left of a series in a window, block by block: steps, times in microseconds, values.

    Each block is read in a transaction of its own, so that a slow reader holds nobody up; what is packed meanwhile comes
    once all the same.

    Args:
        database: Read while the samples are asked for.
        series: Which.
        tail: Its stream's, shared with others of the stream, so that the log is not read anew for each.
        window: Blocks outside it are not even read.

    Raises:
        ValueError: A block is damaged.
    """
    place = 0
    tail = tail or LogTail(None, series.stream)
    while True:
        with database.reading() as connection:
            series = _again(connection, series)
            if place < series.end:
                place, found = _block(connection, series, place, window)
            else:
                tail.refresh(connection)
                columns = tail.read(series)
                skipped = place - series.end
                place += len(columns[0]) - skipped
                found = columns[0][skipped:], columns[1][skipped:], columns[2][skipped:]
                if not len(found[0]):
                    return
        found = cut(*found, window)
        if len(found[0]):
            yield found


def last(
    connection: sqlite3.Connection, series: StoredSeries, tail: LogTail, count: int
) -> tuple[array[int], array[int], array[float]]:
    """The newest samples of a series, at most so many: steps, times in microseconds, values; of one block at most.

    Raises:
        ValueError: The block is damaged.
    """
    columns = tail.read(series)
    missing = count - len(columns[0])
    if missing > 0 and series.end:
        place = max(0, series.end - missing, (series.end - 1) // BLOCK * BLOCK)
        before = _block(connection, series, place)[1]
        columns = before[0] + columns[0], before[1] + columns[1], before[2] + columns[2]
    steps, times, values = columns
    return steps[-count:], times[-count:], values[-count:]


def _again(connection: sqlite3.Connection, series: StoredSeries) -> StoredSeries:
    found = connection.execute(
        "SELECT stream, key, id, packed, end FROM series WHERE stream = ? AND key = ?", (series.stream, series.key)
    ).fetchone()
    return StoredSeries(series.stream, series.key) if found is None else StoredSeries(*found)


def _block(
    connection: sqlite3.Connection, series: StoredSeries, place: int, window: Window = EVERYTHING
) -> tuple[int, tuple[array[int], array[int], array[float]]]:
    """The rest of the block that *place* is in, or nothing when it is gone or outside; and the place behind it."""
    number = place // BLOCK
    found = connection.execute(
        "SELECT block.data, axis.data FROM block JOIN axis ON axis.id = block.axis "  # noqa: S608
        f"WHERE block.id = ? AND {window.by}_max >= ? AND {window.by}_min <= ?",
        (series.id << BLOCK_BITS | number, *window.bounds),
    ).fetchone()
    after = min((number + 1) * BLOCK, series.end)
    if found is None or found[0] is None:
        return after, (array("q"), array("q"), array("d"))
    steps, times, values = decode(found[1], found[0])
    skipped = place % BLOCK
    return after, (steps[skipped:], times[skipped:], values[skipped:])


def decode(axis: bytes, data: bytes) -> tuple[array[int], array[int], array[float]]:
    """The samples of a block.

    Raises:
        ValueError: They are damaged.
    """
    steps, times = decode_axis(axis)
    values = codec.decode_values(data)
    if not len(steps) == len(times) == len(values):
        raise ValueError(f"a damaged block: {len(steps)} steps, {len(times)} times, {len(values)} values")
    return steps, times, values


def cut(
    steps: array[int], times: array[int], values: array[float], window: Window
) -> tuple[array[int], array[int], array[float]]:
    """What of the samples is in a window."""
    if window.whole or not len(steps):
        return steps, times, values
    low, high = window.bounds
    by = steps if window.by == "step" else times
    if low <= min(by) and max(by) <= high:
        return steps, times, values
    inside = [low <= one <= high for one in by]
    return (
        array("q", compress(steps, inside)),
        array("q", compress(times, inside)),
        array("d", compress(values, inside)),
    )
