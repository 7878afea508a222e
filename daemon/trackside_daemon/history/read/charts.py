"""Read charts: a series in a limited number of buckets; and single values of a series.

A chart consists of the coarsest units that still give half as many buckets as requested: samples, cells of 64, or
blocks of 4,096. Its buckets are unions of whole units, so their extremes are exact. Samples that are not packed yet come
from the log.
"""

from __future__ import annotations

import sqlite3
from array import array
from collections.abc import Sequence
from functools import lru_cache
from itertools import compress
from math import inf, isfinite, isnan, nan
from typing import Any, NamedTuple

from trackside_daemon.history import codec
from trackside_daemon.history.codec import BLOCK, CELL, decode_axis
from trackside_daemon.history.read.series import EVERYTHING, LogTail, StoredSeries, Window, cut, decode
from trackside_daemon.history.schema import BLOCK_BITS

POINTS = 2000

_BlockCells = tuple[bytes, bytes, "bytes | None"]
"""Cells of a block, cells of its axis, and the counts of its non-finite samples."""


class Chart(NamedTuple):
    """Buckets of a series."""

    # ``[step, time, min, max, last]``; step and time are those of the last sample, the time in Unix seconds.
    points: list[list[float]]
    unit: int  # samples per unit: 1, 64 or 4,096. Above 1, the window's edges were rounded to a unit
    samples: int  # number of samples in the window; approximate if its edges were rounded
    # The unit is 1, and cells stand for samples that are gone. (Coarser charts are unaffected: they are made of cells
    # anyway.)
    trimmed: bool = False
    nonfinite: Sequence[int] = ()  # number of NaN and infinite samples of each point; empty if there are none
    # Mean of the last values of each point's units, without NaN and infinities: of all its samples if the unit is 1,
    # else of every 64th or 4,096th. Empty if every point is one unit, whose last value it would be.
    means: Sequence[float] = ()


class _Columns(NamedTuple):
    """Consecutive samples or cells; a sample is its own minimum, maximum and last. *odd* counts non-finite samples."""

    steps: array[int]
    times: array[int]
    mins: array[float]
    maxs: array[float]
    lasts: array[float]
    odd: array[int]

    def buckets(self, most: int) -> list[list[float]]:
        """Return at most *most* buckets of equally many units: a point each, its number of non-finite samples, its mean."""
        size = max(1, -(-len(self.steps) // most))  # rounded up
        if size == 1:
            return [[step, time / 1e6, *rest, rest[2]] for step, time, *rest in zip(*self, strict=True)]
        steps, times, mins, maxs, lasts, odd = self
        clean = not odd.tobytes().strip(b"\0")  # nearly always, and found in one call
        low, high = codec.extremes(mins)[0], codec.extremes(maxs)[1]
        buckets = []
        for start in range(0, len(steps), size):
            stop = min(start + size, len(steps))
            end = stop - 1
            extent = low(mins[start:stop]), high(maxs[start:stop])
            mean = sum(lasts[start:stop]) / (stop - start) if clean else _finite_mean(lasts[start:stop])
            buckets.append(
                [steps[end], times[end] / 1e6, *extent, lasts[end], 0 if clean else sum(odd[start:stop]), mean]
            )
        return buckets


def chart(
    connection: sqlite3.Connection,
    series: StoredSeries,
    tail: LogTail,
    window: Window = EVERYTHING,
    points: int = POINTS,
) -> Chart:
    """Return at most *points* buckets of the samples in the window.

    Raises:
        ValueError: A block is damaged.
    """
    fresh = cut(*tail.read(series), window)
    first, last, packed, blocks = _overlap(connection, series, window)
    samples = packed + len(fresh[0])
    if blocks and samples >= BLOCK * points / 2:
        new = -(-len(fresh[0]) // BLOCK)
        size = max(1, -(-(blocks + new) // points))
        while points > 1 and -(-blocks // size) - (-new // size) > points:
            size += 1
        buckets = _merge_blocks(connection, (first, last, blocks), window, size)
        if new:
            buckets += _cells(*fresh, size * BLOCK).buckets(new)
        return _chart(buckets if len(buckets) <= points else [_merge(buckets)], BLOCK, samples)
    coarse = samples >= CELL * points / 2
    parts: list[_Columns] = []
    trimmed = False
    if blocks and coarse:
        parts = _read_cells(connection, first, last, window)
    elif blocks:
        parts, trimmed = _read_samples(connection, first, last, window)
    if len(fresh[0]):
        parts.append(_cells(*fresh, CELL) if coarse else _single(*fresh))
    columns = _join(parts)
    return _chart(columns.buckets(points), CELL if coarse else 1, samples if coarse else len(columns.steps), trimmed)


class Values:
    """The values of a series at steps: each is that of the last sample at or before the step, never of a later one.

    Args:
        connection: In a transaction.
        series: The series.
        tail: The log of its stream.
    """

    def __init__(self, connection: sqlite3.Connection, series: StoredSeries, tail: LogTail) -> None:
        ids = (series.id << BLOCK_BITS, series.id + 1 << BLOCK_BITS)
        query = "SELECT id, step_min, time_min FROM block WHERE id >= ? AND id < ? ORDER BY id"
        self._connection, self._fresh = connection, _single(*tail.read(series))
        # Lowest step and time of each part; the part 0 is the log.
        self._parts: list[tuple[int, float, float]] = connection.execute(query, ids).fetchall() if series.id else []
        self._parts += [(0, -inf, -inf)] * bool(self._fresh.steps)
        self._read = lru_cache(2)(self._part)

    def at(self, step: int, time: float, *, late: bool) -> float | None:
        """Return the value at a step, as it was at a time in Unix seconds; None without a sample.

        A training that goes back makes steps again, so the samples until the time select what it made of the step. Those
        of the same step that follow count too, since they may be pushed after what happened at it; with *late*, also if no
        sample is as early as the time.

        Raises:
            ValueError: A block is damaged.
        """
        limit = round(time * 1e6)
        for number, (_, low, begin) in reversed(list(enumerate(self._parts))):
            if low <= step and begin <= limit:
                columns = self._read(number)
                for place in reversed(range(len(columns.steps))):
                    if columns.steps[place] <= step and columns.times[place] <= limit:
                        return self._on(number, place, step)
        return self._on(0, 0, step) if late and self._parts and self._read(0).steps[0] <= step else None

    def _on(self, number: int, place: int, step: int) -> float:
        """Return the value of the last sample from a place on, before the steps exceed one or fall."""
        columns = self._read(number)
        while True:
            at, value = columns.steps[place], columns.lasts[place]
            place += 1
            if place == len(columns.steps):
                number, place = number + 1, 0
                if number == len(self._parts):
                    return value
                columns = self._read(number)
            if not at <= columns.steps[place] <= step:
                return value

    def _part(self, number: int) -> _Columns:
        """Return the samples of a part; the cells of a trimmed block, whose last samples are left."""
        block = self._parts[number][0]
        return _join(_read_samples(self._connection, block, block, EVERYTHING)[0]) if block else self._fresh


def _chart(buckets: list[list[float]], unit: int, samples: int, trimmed: bool = False) -> Chart:
    means = [bucket.pop() for bucket in buckets]
    odd = [int(bucket.pop()) for bucket in buckets]
    whole = all(mean == bucket[4] or isnan(mean) for mean, bucket in zip(means, buckets, strict=True))
    return Chart(buckets, unit, samples, trimmed, odd if any(odd) else (), () if whole else means)


def _finite_mean(values: Sequence[float]) -> float:
    finite = [value for value in values if isfinite(value)]
    return sum(finite) / len(finite) if finite else nan


def _overlap(connection: sqlite3.Connection, series: StoredSeries, window: Window) -> tuple[int, int, int, int]:
    """Return first and last id of the blocks in a window, about how many of their samples are in it, and their number."""
    base = series.id << BLOCK_BITS
    query = "SELECT min(id), max(id), sum(count), count(*) FROM block WHERE id >= ? AND id < ?"
    ids = (base, base + (1 << BLOCK_BITS))
    if not series.id or window.whole:
        first, last, count, blocks = connection.execute(query, ids).fetchone()
        return first or 0, last or 0, count or 0, blocks
    low, high = window.bounds
    by = window.by
    first, last, count, blocks = connection.execute(
        f"{query} AND {by}_max >= ? AND {by}_min <= ?", (*ids, low, high)
    ).fetchone()
    if not blocks:
        return 0, 0, 0, 0
    # The blocks at the edges count by the part of their range that is in the window: reading them would cost more.
    outside = 0.0
    for edge in {first, last}:
        least, most, inside = connection.execute(
            f"SELECT {by}_min, {by}_max, count FROM block WHERE id = ?",  # noqa: S608
            (edge,),
        ).fetchone()
        part = max(0.0, low - least) + max(0.0, most - high)
        outside += inside * min(1.0, part / max(1, most - least))
    return first, last, round(count - outside), blocks


def _merge_blocks(
    connection: sqlite3.Connection, span: tuple[int, int, int], window: Window, size: int
) -> list[list[float]]:
    """Return buckets of *size* whole blocks; *span* has first and last id and number of the blocks in the window."""
    first, last, count = span
    if count == last - first + 1:
        among = (
            "(SELECT block.id, (block.id - ?) / ? AS part, min, max, samples, last AS ends FROM block LEFT JOIN nonfinite USING (id) "
            "WHERE block.id BETWEEN ? AND ?)"
        )
        values = first, size
        bounds: tuple[float, ...] = (first, last)
    else:  # steps fall, or the clock was set back: skip the blocks between that do not overlap
        among = (
            "(SELECT block.id, (row_number() OVER (ORDER BY block.id) - ?) / ? AS part, min, max, samples, last AS ends FROM block "  # noqa: S608
            f"LEFT JOIN nonfinite USING (id) WHERE block.id BETWEEN ? AND ? AND {window.by}_max >= ? AND {window.by}_min <= ?)"
        )
        values, bounds = (1, size), (first, last, *window.bounds)
    rows = connection.execute(
        "SELECT block.step, block.time / 1e6, low, high, block.last, odd, mean FROM (SELECT max(id) AS top, min(min) AS low, "  # noqa: S608
        f"max(max) AS high, total(samples) AS odd, avg(CASE WHEN abs(ends) < 9e999 THEN ends END) AS mean FROM {among} GROUP BY part) JOIN block ON block.id = top ORDER BY top",
        (*values, *bounds),
    )
    return [[nan if value is None else value for value in row] for row in rows]


def _merge(points: list[list[float]]) -> list[float]:
    _, _, mins, maxs, _, odd, means = zip(*points, strict=True)
    (low,) = codec.cells(mins, len(mins)).mins
    (high,) = codec.cells(maxs, len(maxs)).maxs
    step, time, _, _, last, *_ = points[-1]
    return [step, time, low, high, last, sum(odd), _finite_mean(means)]


def _read_cells(connection: sqlite3.Connection, first: int, last: int, window: Window) -> list[_Columns]:
    """Return the cells, of some blocks, that have a sample in the window."""
    by = window.by
    low, high = window.bounds
    rows = connection.execute(
        f"SELECT block.cells, axis.cells, nonfinite.cells, axis, {by}_min, {by}_max FROM block "  # noqa: S608
        "JOIN axis ON axis.id = block.axis LEFT JOIN nonfinite ON nonfinite.id = block.id "
        f"WHERE block.id BETWEEN ? AND ? AND {by}_max >= ? AND {by}_min <= ?",
        (first, last, low, high),
    ).fetchall()
    parts: list[_Columns] = []
    whole: list[_BlockCells] = []
    for cells, ends, odd, axis, least, most in rows:
        if low <= least <= most <= high:
            whole.append((cells, ends, odd))
            continue
        if whole:
            parts.append(_join_cells(whole))
            whole = []
        data = connection.execute("SELECT data FROM axis WHERE id = ?", (axis,)).fetchone()[0]
        parts.append(_cut_cells(_join_cells([(cells, ends, odd)]), data, window, (least, most)))
    if whole or not parts:
        parts.append(_join_cells(whole))
    return parts


def _cut_cells(columns: _Columns, axis: bytes | None, window: Window, extent: tuple[int, int]) -> _Columns:
    """Return the cells of a block that have a sample in the window; of a trimmed block, those that may have one."""
    low, high = window.bounds
    ends = columns.steps if window.by == "step" else columns.times
    if axis is not None:
        inside = _cells_inside(axis, window)
    elif list(ends) == sorted(ends) and ends[-1] == extent[1]:
        inside = [low <= end and begin <= high for begin, end in zip((extent[0], *ends), ends, strict=False)]
    else:  # the steps or times fall somewhere, so any cell may be inside
        return columns
    if len(inside) != len(ends):
        raise ValueError(f"a damaged block: {len(inside)} cells instead of {len(ends)}")
    selected: list[array[Any]] = [array(column.typecode, compress(column, inside)) for column in columns]
    return _Columns(*selected)


@lru_cache(16)
def _cells_inside(axis: bytes, window: Window) -> list[bool]:
    """Return which cells of an axis have a sample in a window. The series of a run share their axes."""
    numbers = decode_axis(axis)[0 if window.by == "step" else 1]
    low, high = window.bounds
    parts = (numbers[start : start + CELL] for start in range(0, len(numbers), CELL))
    return [low <= max(part) and min(part) <= high and any(low <= at <= high for at in part) for part in parts]


def _join_cells(blocks: Sequence[_BlockCells]) -> _Columns:
    """Return the cells of many blocks, with those of their axes, as columns."""
    if not blocks:
        return _nothing()
    # A chart joins a thousand blocks: as bytes, since decoding each one costs more.
    counts = [len(ends) // 16 for _, ends, _ in blocks]
    sized = list(zip(blocks, counts, strict=True))
    steps = array("q", b"".join([ends[: 8 * count] for (_, ends, _), count in sized]))
    times = array("q", b"".join([ends[8 * count : 16 * count] for (_, ends, _), count in sized]))
    odd = array("B", b"".join([bytes(count) if counted is None else counted for (_, _, counted), count in sized]))
    kinds = {cells[:1] for cells, _, _ in blocks}
    if not kinds <= {b"f", b"d"} or any(
        len(cells) != 1 + 3 * count * (4 if cells[:1] == b"f" else 8)
        or len(ends) != 16 * count
        or (counted is not None and len(counted) != count)
        for (cells, ends, counted), count in sized
    ):
        raise ValueError("damaged cells")
    if len(kinds) > 1:
        return _join([_join_cells([block]) for block in blocks])
    code = kinds.pop().decode("ascii")
    widths = [count * array(code).itemsize for count in counts]
    columns: list[array[float]] = []
    for number in range(3):
        sizes = zip(blocks, widths, strict=True)
        pieces = [cells[1 + number * width : 1 + (number + 1) * width] for (cells, _, _), width in sizes]
        columns.append(array(code, b"".join(pieces)))
    low, high, last = columns
    return _Columns(steps, times, low, high, last, odd)


def _read_samples(connection: sqlite3.Connection, first: int, last: int, window: Window) -> tuple[list[_Columns], bool]:
    """Return the samples of some blocks that are in the window, cells for trimmed blocks; and whether there are such."""
    by = window.by
    low, high = window.bounds
    rows = connection.execute(
        f"SELECT block.data, axis.data, block.cells, axis.cells, nonfinite.cells, {by}_min, {by}_max FROM block "  # noqa: S608
        "JOIN axis ON axis.id = block.axis LEFT JOIN nonfinite ON nonfinite.id = block.id "
        f"WHERE block.id BETWEEN ? AND ? AND {by}_max >= ? AND {by}_min <= ?",
        (first, last, low, high),
    )
    parts = []
    trimmed = False
    for data, axis, cells, ends, odd, least, most in rows:
        if data is None:
            trimmed = True
            columns = _join_cells([(cells, ends, odd)])
            whole = low <= least <= most <= high
            parts.append(columns if whole else _cut_cells(columns, axis, window, (least, most)))
            continue
        samples = decode(axis, data)
        if not low <= least <= most <= high:
            samples = cut(*samples, window)
        parts.append(_single(*samples))
    return parts, trimmed


def _join(parts: Sequence[_Columns]) -> _Columns:
    if len(parts) < 2:
        return parts[0] if parts else _nothing()
    joined: list[array[Any]] = []
    for pieces in zip(*parts, strict=True):
        codes = {piece.typecode for piece in pieces}
        code = "d" if len(codes) > 1 else codes.pop()
        joined.append(array(code))
        for piece in pieces:
            joined[-1].extend(piece if piece.typecode == code else array(code, piece))
    return _Columns(*joined)


def _nothing() -> _Columns:
    return _Columns(array("q"), array("q"), array("d"), array("d"), array("d"), array("B"))


def _single(steps: array[int], times: array[int], values: array[float]) -> _Columns:
    return _Columns(steps, times, values, values, values, codec.nonfinite(values, 1))


def _cells(steps: array[int], times: array[int], values: array[float], size: int) -> _Columns:
    ends = [*range(size - 1, len(steps) - 1, size), len(steps) - 1]
    end_steps = array("q", [steps[end] for end in ends])
    end_times = array("q", [times[end] for end in ends])
    return _Columns(end_steps, end_times, *codec.cells(values, size), codec.nonfinite(values, size))
