"""Pack columns of numbers as little-endian bytes on every machine, and make text writable as UTF-8."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable
from typing import Any


def pack(typecode: str, values: Iterable[float]) -> bytes:
    """Return a column as the wire has it, little-endian: *typecode* ``q`` for int64, ``d`` for float64, ``f`` for float32.

    Raises:
        OverflowError: A value does not fit.
        TypeError: A value is not a number.
    """
    return _little_endian(array(typecode, values)).tobytes()


def unpack(typecode: str, data: bytes) -> array[Any]:
    """Return the numbers that were given to `pack`."""
    column: array[Any] = array(typecode)
    column.frombytes(data)
    return _little_endian(column)


def _little_endian(column: array[Any]) -> array[Any]:
    if sys.byteorder == "big":
        column.byteswap()
    return column


def encoded_varint(number: int) -> bytes:
    """Return an integer in 7 bits a byte, the lowest first, as Protocol Buffers have it; a negative one as 64 bits."""
    number &= 0xFFFF_FFFF_FFFF_FFFF
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def writable(text: str) -> str:
    """Return *text* with all that UTF-8 cannot write replaced: names from the environment may hold undecodable bytes."""
    return text.encode("utf-8", "replace").decode()


def text_of(value: object) -> str:
    """Return a value as text, as by `writable`; the name of its type if it cannot be written."""
    try:
        return writable(str(value))
    except Exception:  # noqa: BLE001  an object of the user's own, and training must go on
        return type(value).__name__
