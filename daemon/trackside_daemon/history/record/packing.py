"""Pack the log of a stream into blocks, one series a step, so that a batch never waits long for its transaction."""

from __future__ import annotations

import sqlite3
from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple

from trackside_daemon.history import codec, log_rows
from trackside_daemon.history.codec import BLOCK, CELL
from trackside_daemon.history.schema import BLOCK_BITS, LOG_BITS

SLICE_BYTES = 1024 * 1024  # one step reads or deletes no more of the log than this and `PackingLimits.rows`

SERIES = "id, packed, end, count, min, max, finite, sum, squares"


class PackingLimits(NamedTuple):
    """The most of a log that is in memory at once."""

    bytes: int = 16 * 1024 * 1024  # of a batch, which has no more pushes than a block either
    columns: int = 32_768  # of a batch, before its last slice: a training may invent keys without end
    rows: int = 64  # that one step reads or deletes


LIMITS = PackingLimits()


class _SeriesRow(NamedTuple):
    id: int
    packed: int
    end: int
    samples: int
    summary: codec.ValueSummary


def _series_row(id_: int, packed: int, end: int, samples: int, *summary: Any) -> _SeriesRow:
    return _SeriesRow(id_, packed, end, samples, codec.ValueSummary(*summary))


class _AxisBlock(NamedTuple):
    """A block of an axis: the id of its row; minimum, maximum and last of its steps, then of its times."""

    id: int
    bounds: tuple[int, int, int, int, int, int]


class _Axis(NamedTuple):
    """Steps and times of consecutive samples, shared by the keys of a push, and their blocks by start index."""

    steps: array[int]
    times: array[int]
    blocks: dict[int, _AxisBlock]


class Packing:
    """Move the log of one stream into blocks, up to the row that was last at the first step.

    After a rollback, begin with a new object.

    Args:
        connection: In a transaction at each `step`.
        stream: The stream's id.
        limits: See `PackingLimits`.

    Attributes:
        packed_bytes: About how many bytes of the log are in blocks so far.
    """

    def __init__(self, connection: sqlite3.Connection, stream: int, limits: PackingLimits = LIMITS) -> None:
        self._connection = connection
        self._limits = limits
        self.stream = stream
        self.packed_bytes = 0
        self._rows = log_rows.LogRows()
        self._last = 0
        self._axes: dict[tuple[int, ...], _Axis] = {}
        self._work = self._steps()

    def step(self) -> bool:
        """Read some log rows, pack one series, or delete some rows; return False when nothing is left to do."""
        return next(self._work, self) is not self

    def _steps(self) -> Iterator[None]:
        # A sample is in the blocks once its series' `packed` covers its row. Rows are deleted after all series do.
        first, last = self.stream << LOG_BITS, (self.stream + 1 << LOG_BITS) - 1
        row = self._connection.execute("SELECT max(id) FROM log WHERE id BETWEEN ? AND ?", (first, last)).fetchone()
        end = 0 if row[0] is None else row[0] - first
        most = self._limits
        while self._last < end:
            self._rows = log_rows.LogRows()
            self._axes = {}
            slices: list[int] = []
            pushes = size = 0
            while self._last < end and pushes < BLOCK and size < most.bytes and self._rows.columns < most.columns:
                if slices:
                    yield
                more, added = self._read(end, BLOCK - pushes)
                pushes += more
                size += added
                slices.append(self._last)
            before, keys = self.packed_bytes, self._rows.keys()
            for done, key in enumerate(keys, 1):
                self._pack_key(key)
                self.packed_bytes = before + size * done // len(keys)
                yield
            # Deleted in the slices in which they were read, so that no step deletes more than it may read.
            for index, number in enumerate(slices):
                if index:
                    yield
                self._connection.execute("DELETE FROM log WHERE id BETWEEN ? AND ?", (first, first + number))

    def _read(self, end: int, max_pushes: int) -> tuple[int, int]:
        """Read the next slice of rows, up to row number *end*; return how many pushes and bytes it has."""
        first = self.stream << LOG_BITS
        pushes = size = 0
        cursor = self._connection.execute(
            "SELECT id, shift, data FROM log WHERE id > ? AND id <= ? ORDER BY id LIMIT ?",
            (first + self._last, first + end, self._limits.rows),
        )
        for id_, shift, data in cursor:
            pushes += self._rows.add(id_ - first, data, shift)
            size += len(data)
            self._last = id_ - first
            if pushes >= max_pushes or size >= SLICE_BYTES:
                break
        cursor.close()
        return pushes, size

    def _pack_key(self, key: str) -> None:
        row = self._connection.execute(
            f"SELECT {SERIES} FROM series WHERE stream = ? AND key = ?",  # noqa: S608
            (self.stream, key),
        ).fetchone()
        series = self._insert_series(key) if row is None else _series_row(*row)
        places = self._rows.places(key, series.packed)
        if places:
            self._pack(series, places)

    def _insert_series(self, key: str) -> _SeriesRow:
        inserted = self._connection.execute("INSERT INTO series (stream, key) VALUES (?, ?)", (self.stream, key))
        return _SeriesRow(int(inserted.lastrowid or 0), 0, 0, 0, codec.ValueSummary())

    def _pack(self, series: _SeriesRow, places: list[tuple[int, int]]) -> None:
        values = array("d")
        for number, column in places:
            values += self._rows.parts[number][1].column(column)
        begin, open_axis, before = self._remove_open_block(series)
        axis = self._axis_of(open_axis, tuple(number for number, _ in places))
        whole = before + values
        for start in range(0, len(whole), BLOCK):
            self._write(series.id << BLOCK_BITS | (begin + start) // BLOCK, whole[start : start + BLOCK], axis, start)
        low, high, finite, total, squares = series.summary.plus(codec.summarize(values))
        total = total if total == total else 0.0  # noqa: PLR0124  infinities of both signs: NaN, which would be NULL
        self._connection.execute(
            "UPDATE series SET packed = ?, end = ?, count = ?, min = ?, max = ?, finite = ?, sum = ?, squares = ? WHERE id = ?",
            (
                self._last,
                begin + len(whole),
                series.samples + len(values),
                low,
                high,
                finite,
                total,
                squares,
                series.id,
            ),
        )

    def _remove_open_block(self, series: _SeriesRow) -> tuple[int, int, array[float]]:
        """Delete the last block of a series if it is not full; return its first place, its axis (0: none), its values."""
        begin = series.end - series.end % BLOCK
        if begin == series.end:
            return begin, 0, array("d")
        id_ = series.id << BLOCK_BITS | begin // BLOCK
        row = self._connection.execute("SELECT axis, data FROM block WHERE id = ?", (id_,)).fetchone()
        if row is None or row[1] is None:  # trimmed: its samples are gone, and the next ones begin their own block
            return begin + BLOCK, 0, array("d")
        axis, data = row
        for table in ("block", "nonfinite"):
            self._connection.execute(f"DELETE FROM {table} WHERE id = ?", (id_,))  # noqa: S608
        return begin, axis, codec.decode_values(data)

    def _axis_of(self, before: int, parts: tuple[int, ...]) -> _Axis:
        """Return the steps and times of axis *before*, unless it is 0, followed by those of *parts*."""
        name = (before, *parts)
        axis = self._axes.get(name)
        if axis is None:
            axis = self._axes[name] = _Axis(array("q"), array("q"), {})
            if before:
                row = self._connection.execute("SELECT data FROM axis WHERE id = ?", (before,)).fetchone()
                if row is None or row[0] is None:
                    raise ValueError(f"axis {before} is missing")
                steps, times = codec.decode_axis(row[0])
                axis.steps.extend(steps)
                axis.times.extend(times)
            for number in parts:
                part = self._rows.parts[number][1]
                axis.steps.extend(part.steps)
                axis.times.extend(part.times)
        if before:
            release(self._connection, {before: (1, 1)})
        return axis

    def _write(self, id_: int, values: array[float], axis: _Axis, start: int) -> None:
        block = self._axis_block(axis, start)
        cells = codec.cells(values)
        low = codec.extremes(cells.mins)[0](cells.mins)
        high = codec.extremes(cells.maxs)[1](cells.maxs)
        self._connection.execute(
            "INSERT INTO block VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                id_,
                len(values),
                block.id,
                *block.bounds,
                low,  # SQLite stores NaN as NULL
                high,
                values[-1],
                codec.encode_cells(cells),
                codec.encode_values(values),
            ),
        )
        nonfinite = codec.nonfinite(values)
        if any(nonfinite):
            self._connection.execute(
                "INSERT INTO nonfinite VALUES (?, ?, ?)", (id_, sum(nonfinite), nonfinite.tobytes())
            )

    def _axis_block(self, axis: _Axis, start: int) -> _AxisBlock:
        """Return the block of an axis that begins at *start*, with one more reference; insert it for the first series."""
        block = axis.blocks.get(start)
        if block is not None:
            self._connection.execute(
                "UPDATE axis SET blocks = blocks + 1, untrimmed = untrimmed + 1 WHERE id = ?", (block.id,)
            )
            return block
        steps, times = axis.steps[start : start + BLOCK], axis.times[start : start + BLOCK]
        ends = [*range(CELL - 1, len(steps) - 1, CELL), len(steps) - 1]
        cells = array("q", [*(steps[end] for end in ends), *(times[end] for end in ends)]).tobytes()
        inserted = self._connection.execute(
            "INSERT INTO axis VALUES (NULL, 1, 1, ?, ?)", (cells, codec.encode_axis(steps, times))
        )
        bounds = (min(steps), max(steps), steps[-1], min(times), max(times), times[-1])
        axis.blocks[start] = _AxisBlock(int(inserted.lastrowid or 0), bounds)
        return axis.blocks[start]


def release(connection: sqlite3.Connection, axes: dict[int, tuple[int, int]]) -> None:
    """Remove references to axes: by axis, how many blocks, and how many blocks with samples; drop what is unused."""
    for axis, (blocks, untrimmed) in axes.items():
        connection.execute(
            "UPDATE axis SET blocks = blocks - ?, untrimmed = untrimmed - ? WHERE id = ?", (blocks, untrimmed, axis)
        )
        connection.execute("DELETE FROM axis WHERE id = ? AND blocks <= 0", (axis,))
        connection.execute("UPDATE axis SET data = NULL WHERE id = ? AND untrimmed <= 0 AND data NOT NULL", (axis,))
