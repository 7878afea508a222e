"""Packs the log of one stream into blocks, batch by batch and a series at a time, so that whoever waits to write never waits for long."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.history import codec, rows
from trackside_daemon.history.codec import BLOCK, CELL
from trackside_daemon.history.schema import BLOCK_BITS, LOG_BITS

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator


BATCH_BYTES = 16 * 1024 * 1024
"""So much of a log is in memory at once, and pushes for a block."""

SLICE_ROWS = 64
SLICE_BYTES = 1024 * 1024
"""One step reads no more, nor drops more."""

SERIES = "id, packed, end, count, finite, sum, min, max"


class _Series(NamedTuple):
    id: int
    packed: int
    end: int
    samples: int
    finite: int
    sum: float
    min: float | None
    max: float | None


class _Cut(NamedTuple):
    """A block's part of an axis: its row of table ``axis``; least, greatest and last of the steps, then of the times."""

    id: int
    bounds: tuple[int, int, int, int, int, int]


class _Axis(NamedTuple):
    """Steps and times of some samples, shared by the keys of a push, and their cuts by where they start."""

    steps: array[int]
    times: array[int]
    cuts: dict[int, _Cut]


class Packing:
    """One stream's log, up to the first step, on its way into blocks. After a rollback it must be begun anew.

    Args:
        connection: In a transaction, as at each `step`.
        stream: Its id.
    """

    def __init__(self, connection: sqlite3.Connection, stream: int) -> None:
        self._connection = connection
        self.stream = stream
        self._rows = rows.LogRows()
        self._last = 0
        self._axes: dict[tuple[int, ...], _Axis] = {}
        self._work = self._steps()

    def step(self) -> bool:
        """Read some log rows, or pack the next series, or drop some rows. Whether there is more to do."""
        return next(self._work, self) is not self

    def _steps(self) -> Iterator[None]:
        """Batch after batch: a sample is in the blocks when its series says so, and rows go when all series say so."""
        first, last = _range(self.stream)
        found = self._connection.execute("SELECT max(id) FROM log WHERE id BETWEEN ? AND ?", (first, last)).fetchone()
        end = 0 if found[0] is None else found[0] - first
        while self._last < end:
            self._rows, self._axes = rows.LogRows(), {}
            slices: list[int] = []
            pushes = size = 0
            while self._last < end and pushes < BLOCK and size < BATCH_BYTES:
                if slices:
                    yield
                more, added = self._read(end, BLOCK - pushes)
                pushes, size = pushes + more, size + added
                slices.append(self._last)
            for key in self._rows.keys():  # noqa: SIM118  not a dict
                self._pack_key(key)
                yield
            for place, number in enumerate(slices):
                if place:
                    yield
                self._connection.execute("DELETE FROM log WHERE id BETWEEN ? AND ?", (first, first + number))

    def _read(self, end: int, most: int) -> tuple[int, int]:
        """The next rows, up to number *end* or so many pushes, but a slice at most; how many pushes and bytes they are."""
        first = self.stream << LOG_BITS
        pushes = size = 0
        found = self._connection.execute(
            "SELECT id, shift, data FROM log WHERE id > ? AND id <= ? ORDER BY id LIMIT ?",
            (first + self._last, first + end, SLICE_ROWS),
        )
        for id_, shift, data in found:
            pushes += self._rows.add(id_ - first, data, shift)
            size += len(data)
            self._last = id_ - first
            if pushes >= most or size >= SLICE_BYTES:
                break
        found.close()
        return pushes, size

    def _pack_key(self, key: str) -> None:
        found = self._connection.execute(
            f"SELECT {SERIES} FROM series WHERE stream = ? AND key = ?",  # noqa: S608
            (self.stream, key),
        ).fetchone()
        series = self._begin(key) if found is None else _Series(*found)
        places = self._rows.places(key, series.packed)
        if places:
            self._pack(series, places)

    def _begin(self, key: str) -> _Series:
        inserted = self._connection.execute("INSERT INTO series (stream, key) VALUES (?, ?)", (self.stream, key))
        return _Series(int(inserted.lastrowid or 0), 0, 0, 0, 0, 0.0, None, None)

    def _pack(self, series: _Series, places: list[tuple[int, int]]) -> None:
        values = array("d")
        for number, column in places:
            values += self._rows.parts[number][1].column(column)
        begin, open_axis, before = self._open(series)
        axis = self._axis(open_axis, tuple(number for number, _ in places))
        whole = before + values
        for start in range(0, len(whole), BLOCK):
            self._write(series.id << BLOCK_BITS | (begin + start) // BLOCK, whole[start : start + BLOCK], axis, start)
        added = codec.summarize(values)
        total = series.sum + added.sum
        self._connection.execute(
            "UPDATE series SET packed = ?, end = ?, count = ?, finite = ?, sum = ?, min = ?, max = ? WHERE id = ?",
            (
                self._last,
                begin + len(whole),
                series.samples + len(values),
                series.finite + added.finite,
                total if total == total else 0.0,  # noqa: PLR0124  beyond float64 both ways: NaN, which would be NULL
                min((one for one in (series.min, added.low) if one is not None), default=None),
                max((one for one in (series.max, added.high) if one is not None), default=None),
                series.id,
            ),
        )

    def _open(self, series: _Series) -> tuple[int, int, array[float]]:
        """Where the series' last block begins that is not full, its axis, and its values; that row is taken away."""
        begin = series.end - series.end % BLOCK
        if begin == series.end:
            return begin, 0, array("d")
        id_ = series.id << BLOCK_BITS | begin // BLOCK
        found = self._connection.execute("SELECT axis, data FROM block WHERE id = ?", (id_,)).fetchone()
        if found is None or found[1] is None:  # trimmed: its samples are gone, and the next ones begin their own block
            return begin + BLOCK, 0, array("d")
        axis, data = found
        for table in ("block", "nonfinite"):
            self._connection.execute(f"DELETE FROM {table} WHERE id = ?", (id_,))  # noqa: S608
        return begin, axis, codec.decode_values(data)

    def _axis(self, before: int, parts: tuple[int, ...]) -> _Axis:
        """The steps and times of an axis that stands already, if there is one, and of *parts* behind it."""
        name = (before, *parts)
        known = self._axes.get(name)
        if known is None:
            known = self._axes[name] = _Axis(array("q"), array("q"), {})
            if before:
                found = self._connection.execute("SELECT data FROM axis WHERE id = ?", (before,)).fetchone()
                if found is None or found[0] is None:
                    raise ValueError(f"axis {before} is missing")
                steps, times = decode_axis(found[0])
                known.steps.extend(steps)
                known.times.extend(times)
            for number in parts:
                part = self._rows.parts[number][1]
                known.steps.extend(part.steps)
                known.times.extend(part.times)
        if before:
            release(self._connection, {before: (1, 1)})
        return known

    def _write(self, id_: int, values: array[float], axis: _Axis, start: int) -> None:
        cut = self._cut(axis, start)
        cells = codec.cells(values)
        low, high = codec.extremes(cells.mins)[0](cells.mins), codec.extremes(cells.maxs)[1](cells.maxs)
        self._connection.execute(
            "INSERT INTO block VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(id_, len(values), cut.id, *cut.bounds),
                *(low, high, values[-1], codec.encode_cells(cells), codec.encode_values(values)),  # NaN becomes NULL
            ),
        )
        odd = codec.nonfinite(values)
        if any(odd):
            self._connection.execute("INSERT INTO nonfinite VALUES (?, ?, ?)", (id_, sum(odd), odd.tobytes()))

    def _cut(self, axis: _Axis, start: int) -> _Cut:
        """The block of an axis that begins at *start*, for one series more: written for the first."""
        known = axis.cuts.get(start)
        if known is not None:
            self._connection.execute(
                "UPDATE axis SET blocks = blocks + 1, untrimmed = untrimmed + 1 WHERE id = ?", (known.id,)
            )
            return known
        steps, times = axis.steps[start : start + BLOCK], axis.times[start : start + BLOCK]
        ends = [*range(CELL - 1, len(steps) - 1, CELL), len(steps) - 1]
        cells = array("q", [*(steps[end] for end in ends), *(times[end] for end in ends)]).tobytes()
        inserted = self._connection.execute(
            "INSERT INTO axis VALUES (NULL, 1, 1, ?, ?)", (cells, encode_axis(steps, times))
        )
        bounds = (min(steps), max(steps), steps[-1], min(times), max(times), times[-1])
        axis.cuts[start] = _Cut(int(inserted.lastrowid or 0), bounds)
        return axis.cuts[start]


def encode_axis(steps: array[int], times: array[int]) -> bytes:
    """Steps and times as bytes."""
    data = codec.encode_integers(steps)
    return len(data).to_bytes(4, "little") + data + codec.encode_integers(times)


def decode_axis(data: bytes) -> tuple[array[int], array[int]]:
    """What `encode_axis` was given.

    Raises:
        ValueError: The bytes are damaged.
    """
    size = int.from_bytes(data[:4], "little")
    return codec.decode_integers(data[4 : 4 + size]), codec.decode_integers(data[4 + size :])


def release(connection: sqlite3.Connection, axes: dict[int, tuple[int, int]]) -> None:
    """So many blocks no longer refer to an axis, and so many have lost their samples: drop what nobody needs."""
    for axis, (blocks, untrimmed) in axes.items():
        connection.execute(
            "UPDATE axis SET blocks = blocks - ?, untrimmed = untrimmed - ? WHERE id = ?", (blocks, untrimmed, axis)
        )
        connection.execute("DELETE FROM axis WHERE id = ? AND blocks <= 0", (axis,))
        connection.execute("UPDATE axis SET data = NULL WHERE id = ? AND untrimmed <= 0 AND data NOT NULL", (axis,))


def _range(stream: int) -> tuple[int, int]:
    return stream << LOG_BITS, (stream + 1 << LOG_BITS) - 1
