"""Columns of numbers as bytes, without loss, and their resolutions.

A block is `BLOCK` samples of one series. Its values are written as float32 where that loses nothing, as decimal
integers where they have few digits (numbers that were printed once), else as float64; then byte plane by byte plane
through zlib. Steps and times are differences, less the smallest, over their common divisor; keys that were pushed
together share them as an axis.

Beside the samples stand cells of `CELL` each: minimum, maximum and last, and the step and time of the last. Minima and
maxima leave NaN out; a cell of nothing but NaN has NaN. Everything is little-endian.
"""

from __future__ import annotations

import zlib
from array import array
from itertools import accumulate, repeat
from math import gcd, isfinite, isnan, nan
from operator import add, floordiv, sub
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BLOCK = 4096
CELL = 64
DIGITS = 9
"""Decimals of at most so many places after the point are tried."""

PROBE = 16
"""So many values are tried first, and most columns of measured numbers fail there."""

Extreme: TypeAlias = "Callable[[Sequence[float]], float]"

_INT62 = 2**62
_integers = Struct("<IqqqB")


class Cells(NamedTuple):
    """Resolutions of consecutive samples, a number a cell in each."""

    mins: array[float]
    maxs: array[float]
    lasts: array[float]


class Summary(NamedTuple):
    """What is told of many values; *low* and *high* are None when there is nothing but NaN.

    Attributes:
        finite: How many are neither NaN nor infinite; *sum* is theirs.
    """

    low: float | None
    high: float | None
    finite: int
    sum: float


def encode_values(values: array[float]) -> bytes:
    """Float64 *values* as bytes that `decode_values` makes the same of, to the last bit."""
    single = array("f", values)
    if array("d", single).tobytes() == values.tobytes():
        return b"f" + _squeeze(single)
    digits, scaled = _decimals(values)
    return b"d" + _squeeze(values) if scaled is None else b"i%d" % digits + _squeeze(scaled)


def decode_values(data: bytes) -> array[float]:
    """What `encode_values` was given.

    Raises:
        ValueError: The bytes are damaged.
    """
    kind = data[:1]
    if kind == b"i":
        return array("d", map(_over, _expand("i", data[2:]), repeat(10 ** int(data[1:2]))))
    if kind == b"f":
        return array("d", _expand("f", data[1:]))
    if kind == b"d":
        return _expand("d", data[1:])
    raise ValueError(f"values of an unknown kind {kind!r}")


def encode_integers(column: array[int]) -> bytes:
    """Int64s, rising evenly as a rule, as bytes; at most `BLOCK` of them."""
    if not column:
        return _integers.pack(0, 0, 0, 0, 0)
    steps = list(map(sub, column[1:], column))
    least, highest = min(steps, default=0), max(steps, default=0)
    if max(abs(least), abs(highest)) >= _INT62:
        return _integers.pack(len(column), 0, 0, 1, ord("q")) + _squeeze(column)
    if least == highest:
        return _integers.pack(len(column), column[0], least, 0, 0)
    divisor = gcd(*map(sub, steps, repeat(least)))
    width = next(one for one in "BHIQ" if (highest - least) // divisor < 256 ** array(one).itemsize)
    rest = array(width, map(floordiv, map(sub, steps, repeat(least)), repeat(divisor)))
    return _integers.pack(len(column), column[0], least, divisor, ord(width)) + _squeeze(rest)


def decode_integers(data: bytes) -> array[int]:
    """What `encode_integers` was given.

    Raises:
        ValueError: The bytes are damaged.
    """
    if len(data) < _integers.size:
        raise ValueError("integers cut short")
    count, first, least, divisor, width = _integers.unpack_from(data)
    if count > BLOCK:
        raise ValueError(f"{count} integers, and a block has {BLOCK} at most")
    try:
        if not divisor:
            return array("q", [first]) * count if not least else array("q", range(first, first + least * count, least))
        if chr(width) not in "BHIQq":
            raise ValueError("integers of an unknown width")
        found = rest = _expand(chr(width), data[_integers.size :])
        if chr(width) != "q":
            steps = rest if divisor == 1 else map(int.__mul__, rest, repeat(divisor))
            found = array("q", accumulate(map(add, steps, repeat(least)) if least else steps, initial=first))
    except OverflowError as error:
        raise ValueError(f"integers beyond 64 bits: {error}") from error
    if len(found) != count:
        raise ValueError(f"{len(found)} integers instead of {count}")
    return found


def cells(values: Sequence[float], size: int = CELL) -> Cells:
    """Resolutions of *values*, *size* to a cell; the last cell may have fewer."""
    parts = [values[start : start + size] for start in range(0, len(values), size)]
    low, high = extremes(values)
    return Cells(array("d", map(low, parts)), array("d", map(high, parts)), array("d", [part[-1] for part in parts]))


def extremes(values: Sequence[float]) -> tuple[Extreme, Extreme]:
    """The fastest functions that give minimum and maximum of parts of *values*, NaN left out."""
    return (min, max) if _is_clean(values) else (_min, _max)


def nonfinite(values: Sequence[float], size: int = CELL) -> array[int]:
    """How many of each *size* values are NaN or infinite."""
    code, starts = "B" if size < 256 else "I", range(0, len(values), size)
    if isfinite(sum(values)):
        return array(code, bytes(array(code).itemsize * len(starts)))
    return array(code, [sum(not isfinite(value) for value in values[start : start + size]) for start in starts])


def summarize(values: Sequence[float]) -> Summary:
    """What is told of *values*."""
    if values and _is_clean(values) and isfinite(total := sum(values)):
        return Summary(min(values), max(values), len(values), total)
    numbers = [value for value in values if not isnan(value)]
    finite = [value for value in numbers if isfinite(value)]
    return Summary(min(numbers, default=None), max(numbers, default=None), len(finite), sum(finite))


def encode_cells(columns: Cells) -> bytes:
    """A block's cells, uncompressed, since a chart reads a thousand of them."""
    whole = columns.mins + columns.maxs + columns.lasts
    single = array("f", whole)
    return b"f" + single.tobytes() if array("d", single).tobytes() == whole.tobytes() else b"d" + whole.tobytes()


def decode_cells(data: bytes) -> Cells:
    """What `encode_cells` was given.

    Raises:
        ValueError: The bytes are damaged.
    """
    if data[:1] not in {b"f", b"d"}:
        raise ValueError(f"cells of an unknown kind {data[:1]!r}")
    whole = array("d", array(data[:1].decode(), data[1:]))
    third, over = divmod(len(whole), 3)
    if over:
        raise ValueError(f"{len(whole)} numbers, which are no cells")
    return Cells(whole[:third], whole[third : 2 * third], whole[2 * third :])


def _over(number: int, scale: int) -> float:
    return number / scale


def _is_clean(values: Sequence[float]) -> bool:
    """There is no NaN among them, nor infinities of both signs."""
    total = sum(values)
    return total == total  # noqa: PLR0124  NaN alone differs from itself


def _min(values: Sequence[float]) -> float:
    return min((value for value in values if value == value), default=nan)  # noqa: PLR0124  the same


def _max(values: Sequence[float]) -> float:
    return max((value for value in values if value == value), default=nan)  # noqa: PLR0124  the same


def _decimals(values: array[float]) -> tuple[int, array[int] | None]:
    """Digits after the point, and the integers that all values are once the point is moved; None when they are not."""
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
    if any(map(float.__ne__, map(_over, whole, repeat(scale)), values)):
        return None
    return None if any(value == 0 and str(value)[0] == "-" for value in values) else whole


def _squeeze(column: array[float] | array[int]) -> bytes:
    data, size = column.tobytes(), column.itemsize
    return zlib.compress(b"".join([data[plane::size] for plane in range(size)]), 1)


def _expand(code: str, data: bytes) -> array:  # type: ignore[type-arg]
    """What `_squeeze` was given.

    Raises:
        ValueError: The bytes are damaged.
    """
    column = array(code)
    size = column.itemsize
    unpacker = zlib.decompressobj()
    try:
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
