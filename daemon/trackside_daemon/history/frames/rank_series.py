"""Read the series of one rank into columns, and find which samples were pushed together."""

import sqlite3
import zlib
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trackside_daemon.history import codec
from trackside_daemon.history.codec import BLOCK
from trackside_daemon.history.read.series import LogTail, StoredSeries, find
from trackside_daemon.history.schema import BLOCK_BITS

Integers = NDArray[np.int64]
Values = NDArray[np.float64]


_KINDS: dict[bytes, np.dtype[Any]] = {b"f": np.dtype("<f4"), b"d": np.dtype("<f8"), b"i": np.dtype("<i4")}
_WIDTHS: dict[str, np.dtype[Any]] = {
    "B": np.dtype("u1"),
    "H": np.dtype("<u2"),
    "I": np.dtype("<u4"),
    "Q": np.dtype("<u8"),
    "q": np.dtype("<i8"),
}


def decode_values(data: bytes, out: Values) -> None:
    """Write the values of a block to *out*, which has their number.

    Raises:
        ValueError: The bytes are damaged.
    """
    kind = _KINDS.get(data[:1])
    if kind is None:
        raise ValueError(f"values of an unknown kind {data[:1]!r}")
    if data[:1] == b"i":
        out[:] = _expand(kind, data[2:], len(out))
        out /= 10 ** int(data[1:2])
    else:
        out[:] = _expand(kind, data[1:], len(out))


def decode_axis(data: bytes, steps: Integers, times: Integers) -> None:
    """Write the steps and times of an axis to arrays that have their number.

    Raises:
        ValueError: The bytes are damaged.
    """
    size = int.from_bytes(data[:4], "little")
    _decode_integers(data[4 : 4 + size], steps)
    _decode_integers(data[4 + size :], times)


def _decode_integers(data: bytes, out: Integers) -> None:
    if len(data) < codec.INTEGERS.size:
        raise ValueError("integers cut short")
    count, first, least, divisor, width = codec.INTEGERS.unpack_from(data)
    if count != len(out):
        raise ValueError(f"{count} integers instead of {len(out)}")
    if not divisor:
        out[:] = first + least * np.arange(count, dtype=np.int64)
        return
    kind = _WIDTHS.get(chr(width))
    if kind is None:
        raise ValueError("integers of an unknown width")
    rest = data[codec.INTEGERS.size :]
    if chr(width) == "q":
        out[:] = _expand(kind, rest, count)
        return
    out[0] = first
    # As the encoder did, in 64 bits, which wrap around alike.
    np.multiply(_expand(kind, rest, count - 1).astype(np.int64), divisor, out=out[1:])
    out[1:] += least
    np.cumsum(out, out=out)


def _expand(kind: np.dtype[Any], data: bytes, count: int) -> NDArray[Any]:
    """Return the *count* numbers that the encoder split into planes of bytes and compressed."""
    unpacker = zlib.decompressobj()
    try:
        # At most one byte more than expected: damaged or hostile data must not fill the memory.
        planes = unpacker.decompress(data, count * kind.itemsize + 1)
    except zlib.error as error:
        raise ValueError(f"a damaged block: {error}") from error
    if len(planes) != count * kind.itemsize or not unpacker.eof:
        raise ValueError(f"a damaged block: {len(planes)} bytes instead of {count * kind.itemsize}")
    woven = np.empty((count, kind.itemsize), np.uint8)
    for number, plane in enumerate(np.frombuffer(planes, np.uint8).reshape(kind.itemsize, count)):
        woven[:, number] = plane  # a transposed copy takes three times as long
    return woven.view(kind).reshape(count)


class Axis(NamedTuple):
    """Steps and times in microseconds of samples, in the order of commit."""

    steps: Integers
    times: Integers

    def equals(self, steps: Integers, times: Integers) -> bool:
        """Return whether these are its steps and times."""
        if len(times) != len(self.times) or times[-1:] != self.times[-1:]:
            return False
        return bool(np.array_equal(times, self.times)) and bool(np.array_equal(steps, self.steps))


class EncodedSeries(NamedTuple):
    """A series, before its values are decoded."""

    key: str
    axis: Axis  # its steps and times; series that were pushed together share it
    blocks: Sequence[tuple[int, int]]  # ids and counts of its blocks
    tail: Values  # the values that are still in the log

    def read(self, connection: sqlite3.Connection, out: Values) -> None:
        """Write all values to *out*, which has their number.

        Raises:
            ValueError: A block is damaged.
        """
        place = 0
        for id_, count in self.blocks:
            (data,) = connection.execute("SELECT data FROM block WHERE id = ?", (id_,)).fetchone()
            decode_values(data, out[place : place + count])
            place += count
        out[place:] = self.tail


class RankReader:
    """Reads the series of one rank of an attempt.

    Args:
        connection: In a transaction.
        stream: The id of its stream.
    """

    def __init__(self, connection: sqlite3.Connection, stream: int) -> None:
        self._connection = connection
        self._stream = stream
        self._tail = LogTail(connection, stream)
        self._axes: dict[tuple[bytes, ...], Axis] = {}

    def columns(self, keys: Collection[str] | None) -> list[EncodedSeries]:
        """Return the series that have samples, in the order in which they began; only those of *keys*, if given.

        Raises:
            ValueError: An axis is damaged.
        """
        found = (self._column(series) for series in find(self._connection, self._stream, self._tail, keys))
        return [column for column in found if len(column.axis.steps)]

    def _column(self, series: StoredSeries) -> EncodedSeries:
        rows = self._connection.execute(
            "SELECT id, count, axis FROM block WHERE id >= ? AND id < ? AND data NOT NULL",
            (series.id << BLOCK_BITS, series.id + 1 << BLOCK_BITS),
        ).fetchall()
        steps, times, values = (np.array(part) for part in self._tail.read(series))
        axis = self._axis([(axis, count) for _, count, axis in rows], Axis(steps, times))
        return EncodedSeries(series.key, axis, [(id_, count) for id_, count, _ in rows], values)

    def _axis(self, blocks: list[tuple[int, int]], tail: Axis) -> Axis:
        name = (repr(blocks).encode(), tail.steps.tobytes(), tail.times.tobytes())
        if name not in self._axes:
            total = sum(count for _, count in blocks)
            steps, times = (np.empty(total + len(tail.steps), np.int64) for _ in range(2))
            place = 0
            for id_, count in blocks:
                (data,) = self._connection.execute("SELECT data FROM axis WHERE id = ?", (id_,)).fetchone()
                decode_axis(data, steps[place : place + count], times[place : place + count])
                place += count
            steps[place:], times[place:] = tail
            # The log is packed key by key, so that equal axes may be cut into different blocks for a while.
            equal = (axis for axis in self._axes.values() if axis.equals(steps, times))
            self._axes[name] = next(equal, Axis(steps, times))
        return self._axes[name]


class RankRows(NamedTuple):
    """The rows of a rank, in the order of their times, and then of their steps."""

    axis: Axis  # steps and times of the rows
    # By the identity of a column's axis, the row of each sample; None if it is that of the same index.
    places: dict[int, Integers | None]


def join_rows(axes: Sequence[Axis]) -> RankRows:
    """Return the rows that samples of some axes make: one for each step and time.

    A row has at most one sample of an axis: two of the same step and time make two rows.
    """
    if len(axes) == 1 and bool(np.all(axes[0].times[1:] >= axes[0].times[:-1])):
        return RankRows(axes[0], {id(axes[0]): None})
    steps = np.concatenate([axis.steps for axis in axes])
    times = np.concatenate([axis.times for axis in axes])
    repeats = np.concatenate([_repeats(axis) for axis in axes])
    order = np.lexsort((repeats, steps, times))
    names = np.stack((times, steps, repeats))[:, order]
    begins = np.empty(len(order), bool)
    begins[:1] = True
    np.any(names[:, 1:] != names[:, :-1], axis=0, out=begins[1:])
    rows = np.empty(len(order), np.int64)
    rows[order] = np.cumsum(begins) - 1
    parts = np.split(rows, np.cumsum([len(axis.steps) for axis in axes])[:-1])
    places: dict[int, Integers | None] = {id(axis): part for axis, part in zip(axes, parts, strict=True)}
    return RankRows(Axis(names[1, begins], names[0, begins]), places)


def _repeats(axis: Axis) -> Integers:
    """Return how many samples with the same step and time are before each sample."""
    order = np.lexsort((axis.steps, axis.times))  # stable
    steps, times = axis.steps[order], axis.times[order]
    begins = np.ones(len(order), bool)
    begins[1:] = (steps[1:] != steps[:-1]) | (times[1:] != times[:-1])
    indices = np.arange(len(order))
    repeats = np.empty(len(order), np.int64)
    repeats[order] = indices - np.maximum.accumulate(np.where(begins, indices, 0))
    return repeats


def read_parts(
    connection: sqlite3.Connection, series: StoredSeries, tail: LogTail, most: int
) -> Iterator[tuple[Integers, Integers, Values]]:
    """Yield steps, times in microseconds and values of a series, in parts of at most about *most* samples.

    Raises:
        ValueError: A block is damaged.
    """
    rows = connection.execute(
        "SELECT block.id, count, axis FROM block WHERE block.id >= ? AND block.id < ? AND data NOT NULL",
        (series.id << BLOCK_BITS, series.id + 1 << BLOCK_BITS),
    ).fetchall()
    each = max(1, most // BLOCK)
    for begin in range(0, len(rows), each):
        part = rows[begin : begin + each]
        total = sum(count for _, count, _ in part)
        steps, times, values = np.empty(total, np.int64), np.empty(total, np.int64), np.empty(total)
        place = 0
        for id_, count, axis in part:
            inside = slice(place, place + count)
            data, stamps = connection.execute(
                "SELECT block.data, axis.data FROM block, axis WHERE block.id = ? AND axis.id = ?", (id_, axis)
            ).fetchone()
            decode_axis(stamps, steps[inside], times[inside])
            decode_values(data, values[inside])
            place += count
        yield steps, times, values
    last = tail.read(series)
    if len(last[0]):
        yield np.array(last[0]), np.array(last[1]), np.array(last[2])
