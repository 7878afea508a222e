"""Columns of numbers as bytes, little-endian on every machine; and text that can be written."""

from __future__ import annotations

import sys
from array import array
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


def pack(typecode: str, values: Iterable[float]) -> bytes:
    """A column as the wire has it: *typecode* ``q`` for int64, ``d`` for float64, little-endian.

    Raises:
        OverflowError: A value does not fit.
        TypeError: A value is not a number.
    """
    return _little_endian(array(typecode, values)).tobytes()


def unpack(typecode: str, data: bytes) -> array[Any]:
    """What `pack` was given."""
    column: array[Any] = array(typecode)
    column.frombytes(data)
    return _little_endian(column)


def _little_endian(column: array[Any]) -> array[Any]:
    if sys.byteorder == "big":
        column.byteswap()
    return column


def writable(text: str) -> str:
    """*text* as UTF-8 can write it: a name from the environment or the command line may hold bytes that are no text."""
    return text.encode("utf-8", "replace").decode()
