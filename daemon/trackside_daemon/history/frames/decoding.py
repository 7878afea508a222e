"""Decode blocks of the history with numpy, into memory that the caller provides; see `codec` for the format."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from trackside_daemon.history import codec

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
    woven = np.frombuffer(planes, np.uint8).reshape(kind.itemsize, count).T
    return np.ascontiguousarray(woven).view(kind).reshape(count)
