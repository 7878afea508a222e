"""Encode columns of numbers as bytes, without loss, and compute their cells.

A block is `BLOCK` samples of one series. Its values are stored as float32 if that loses nothing, as decimal integers if
they have few digits (numbers that were once printed), else as float64. The bytes are reordered by plane (all first
bytes, all second bytes, and so on) and compressed with zlib. Steps and times are differences, minus the smallest,
divided by their common divisor; keys that are pushed together share them as an axis.

A cell summarizes `CELL` samples: minimum, maximum and last value, and step and time of the last. Minimum and maximum
ignore NaN; in a cell of only NaN they are NaN. Everything is little-endian.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable, Sequence
from itertools import accumulate, repeat
from math import dist, gcd, isfinite, isnan, nan
from operator import add, floordiv, sub
from struct import Struct
from typing import NamedTuple, TypeAlias

BLOCK = 4096
CELL = 64
DIGITS = 9  # largest number of decimal places to try
PROBE = 16  # values to try first: most columns of measured numbers fail there

Extreme: TypeAlias = "Callable[[Sequence[float]], float]"

_INT62 = 2**62
INTEGERS = Struct("<IqqqB")


class Cells(NamedTuple):
    """Columns of cells: minimum, maximum and last value of each."""

    mins: array[float]
    maxs: array[float]
    lasts: array[float]


class ValueSummary(NamedTuple):
    """Statistics of values; *low* and *high* are None if all are NaN."""

    low: float | None = None  # the minimum, without NaN
    high: float | None = None  # the maximum, without NaN
    finite: int = 0  # number of values that are neither NaN nor infinite
    sum: float = 0.0  # sum of the finite values
    # Sum of the squared deviations of the finite values from their mean; None if it is unknown.
    squares: float | None = None

    def plus(self, other: ValueSummary) -> ValueSummary:
        """Return the statistics of both."""
        if not (self.finite and other.finite):
            squares = (self if self.finite else other).squares
        elif self.squares is None or other.squares is None:
            squares = None
        else:
            finite = self.finite + other.finite
            apart = self.sum / self.finite - other.sum / other.finite
            squares = self.squares + other.squares + apart * apart * self.finite / finite * other.finite
        return ValueSummary(
            min((low for low in (self.low, other.low) if low is not None), default=None),
            max((high for high in (self.high, other.high) if high is not None), default=None),
            self.finite + other.finite,
            self.sum + other.sum,
            squares,
        )


def encode_values(values: array[float]) -> bytes:
    """Return float64 *values* as bytes, from which `decode_values` restores every bit."""
    single = array("f", values)
    # Bytes, not numbers, are compared: NaN differs from itself, and 0.0 equals -0.0.
    if array("d", single).tobytes() == values.tobytes():
        return b"f" + _squeeze(single)
    digits, scaled = _decimals(values)
    return b"d" + _squeeze(values) if scaled is None else b"i%d" % digits + _squeeze(scaled)


def decode_values(data: bytes) -> array[float]:
    """Return the values that `encode_values` encoded.

    Raises:
        ValueError: The bytes are damaged.
    """
    kind = data[:1]
    if kind == b"i":
        return array("d", map(_divide, _expand("i", data[2:]), repeat(10 ** int(data[1:2]))))
    if kind == b"f":
        return array("d", _expand("f", data[1:]))
    if kind == b"d":
        return _expand("d", data[1:])
    raise ValueError(f"values of an unknown kind {kind!r}")


def encode_integers(column: array[int]) -> bytes:
    """Return int64s, at most `BLOCK`, as bytes; few if they rise evenly."""
    if not column:
        return INTEGERS.pack(0, 0, 0, 0, 0)
    steps = list(map(sub, column[1:], column))
    least, highest = min(steps, default=0), max(steps, default=0)
    if max(abs(least), abs(highest)) >= _INT62:  # differences of the differences could exceed 64 bits
        return INTEGERS.pack(len(column), 0, 0, 1, ord("q")) + _squeeze(column)
    if least == highest:
        return INTEGERS.pack(len(column), column[0], least, 0, 0)
    divisor = gcd(*map(sub, steps, repeat(least)))  # logged each n steps, only multiples of n are left
    width = next(code for code in "BHIQ" if (highest - least) // divisor < 256 ** array(code).itemsize)
    rest = array(width, map(floordiv, map(sub, steps, repeat(least)), repeat(divisor)))
    return INTEGERS.pack(len(column), column[0], least, divisor, ord(width)) + _squeeze(rest)


def decode_integers(data: bytes) -> array[int]:
    """Return the integers that `encode_integers` encoded.

    Raises:
        ValueError: The bytes are damaged.
    """
    if len(data) < INTEGERS.size:
        raise ValueError("integers cut short")
    count, first, least, divisor, width = INTEGERS.unpack_from(data)
    if count > BLOCK:
        raise ValueError(f"{count} integers, and a block has {BLOCK} at most")
    try:
        if not divisor:
            return array("q", [first]) * count if not least else array("q", range(first, first + least * count, least))
        if chr(width) not in "BHIQq":
            raise ValueError("integers of an unknown width")
        column = rest = _expand(chr(width), data[INTEGERS.size :])
        if chr(width) != "q":
            steps = rest if divisor == 1 else map(int.__mul__, rest, repeat(divisor))
            column = array("q", accumulate(map(add, steps, repeat(least)) if least else steps, initial=first))
    except OverflowError as error:
        raise ValueError(f"integers beyond 64 bits: {error}") from error
    if len(column) != count:
        raise ValueError(f"{len(column)} integers instead of {count}")
    return column


def encode_axis(steps: array[int], times: array[int]) -> bytes:
    """Return steps and times as bytes."""
    data = encode_integers(steps)
    return len(data).to_bytes(4, "little") + data + encode_integers(times)


def decode_axis(data: bytes) -> tuple[array[int], array[int]]:
    """Return the steps and times that `encode_axis` encoded.

    Raises:
        ValueError: The bytes are damaged.
    """
    size = int.from_bytes(data[:4], "little")
    return decode_integers(data[4 : 4 + size]), decode_integers(data[4 + size :])


def cells(values: Sequence[float], size: int = CELL) -> Cells:
    """Return the cells of *values*, *size* values each; the last cell may have fewer."""
    parts = [values[start : start + size] for start in range(0, len(values), size)]
    low, high = extremes(values)
    return Cells(array("d", map(low, parts)), array("d", map(high, parts)), array("d", [part[-1] for part in parts]))


def extremes(values: Sequence[float]) -> tuple[Extreme, Extreme]:
    """Return the fastest functions for minimum and maximum, without NaN, of parts of *values*."""
    return (min, max) if _is_clean(values) else (_min, _max)


def nonfinite(values: Sequence[float], size: int = CELL) -> array[int]:
    """Return how many values of each cell of *size* values are NaN or infinite."""
    code = "B" if size < 256 else "I"
    starts = range(0, len(values), size)
    if isfinite(sum(values)):
        return array(code, bytes(array(code).itemsize * len(starts)))
    return array(code, [sum(not isfinite(value) for value in values[start : start + size]) for start in starts])


def summarize(values: Sequence[float]) -> ValueSummary:
    """Return the statistics of *values*."""
    if values and _is_clean(values) and isfinite(total := sum(values)):
        return ValueSummary(min(values), max(values), len(values), total, _squares(values, total))
    numbers = [value for value in values if not isnan(value)]
    finite = [value for value in numbers if isfinite(value)]
    total = sum(finite)
    return ValueSummary(
        min(numbers, default=None), max(numbers, default=None), len(finite), total, _squares(finite, total)
    )


def _squares(values: Sequence[float], total: float) -> float:
    distance = dist(values, [total / len(values)] * len(values)) if values else 0.0  # the quickest sum of squares
    return distance * distance


def encode_cells(columns: Cells) -> bytes:
    """Return cells as bytes."""
    # Not compressed: a chart reads a thousand blocks' cells.
    whole = columns.mins + columns.maxs + columns.lasts
    single = array("f", whole)
    return b"f" + single.tobytes() if array("d", single).tobytes() == whole.tobytes() else b"d" + whole.tobytes()


def decode_cells(data: bytes) -> Cells:
    """Return the cells that `encode_cells` encoded.

    Raises:
        ValueError: The bytes are damaged.
    """
    if data[:1] not in {b"f", b"d"}:
        raise ValueError(f"cells of an unknown kind {data[:1]!r}")
    whole = array("d", array(data[:1].decode(), data[1:]))
    third, over = divmod(len(whole), 3)
    if over:
        raise ValueError(f"{len(whole)} numbers, which is no multiple of 3, are no cells")
    return Cells(whole[:third], whole[third : 2 * third], whole[2 * third :])


def _divide(number: int, scale: int) -> float:
    return number / scale


def _is_clean(values: Sequence[float]) -> bool:
    """Return whether the values have no NaN, and no infinities of both signs."""
    total = sum(values)
    return total == total  # noqa: PLR0124  NaN alone differs from itself


def _min(values: Sequence[float]) -> float:
    return min((value for value in values if value == value), default=nan)  # noqa: PLR0124  the same


def _max(values: Sequence[float]) -> float:
    return max((value for value in values if value == value), default=nan)  # noqa: PLR0124  the same


def _decimals(values: array[float]) -> tuple[int, array[int] | None]:
    """Return the number of decimal places, and the values as integers of that scale; 0 and None if there are none."""
    digits = 0
    try:
        while digits <= DIGITS:
            if _scaled(values[:PROBE], 10**digits) is not None and (whole := _scaled(values, 10**digits)) is not None:
                return digits, whole
            digits += 1
    except (ValueError, OverflowError):  # NaN, an infinity, or beyond int32
        pass
    return 0, None


def _scaled(values: array[float], scale: int) -> array[int] | None:
    whole = array("i", [round(value * scale) for value in values])
    if any(map(float.__ne__, map(_divide, whole, repeat(scale)), values)):
        return None
    # An integer has no negative zero.
    return None if any(value == 0 and str(value)[0] == "-" for value in values) else whole


def _squeeze(column: array[float] | array[int]) -> bytes:
    data, size = column.tobytes(), column.itemsize
    # Level 1: higher levels cost packing much time for few bytes. Planes of similar bytes compress better.
    return zlib.compress(b"".join([data[plane::size] for plane in range(size)]), 1)


def _expand(code: str, data: bytes) -> array:  # type: ignore[type-arg]
    """Return the column that `_squeeze` compressed.

    Raises:
        ValueError: The bytes are damaged.
    """
    column = array(code)
    size = column.itemsize
    unpacker = zlib.decompressobj()
    try:
        # At most one byte more than a block: damaged or hostile data must not fill the memory.
        planes = unpacker.decompress(data, BLOCK * size + 1)
    except zlib.error as error:
        raise ValueError(f"a damaged block: {error}") from error
    count, over = divmod(len(planes), size)
    if over or not unpacker.eof or unpacker.unused_data:
        raise ValueError(f"a damaged block: {len(planes)} bytes{'' if unpacker.eof else ', cut short'}")
    woven = bytearray(count * size)
    for plane in range(size):
        woven[plane::size] = planes[plane * count : (plane + 1) * count]
    column.frombytes(woven)
    return column
