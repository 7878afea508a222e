"""The format of safetensors: the length of a header, the header as JSON, and the data of the tensors without gaps.

https://huggingface.co/docs/safetensors/index#format
"""

from __future__ import annotations

from math import prod
from typing import IO, TYPE_CHECKING

import msgspec

from trackside_daemon.checkpoints.audit.reading import DamageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from trackside_daemon.checkpoints.audit.reading import Reader

HEADER_BYTES = 100_000_000  # the most that the library accepts
BITS = {"BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "F16": 16, "BF16": 16, "U32": 32, "I32": 32, "F32": 32}
BITS |= {"U64": 64, "I64": 64, "F64": 64, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4, "C64": 64}


Tensor = tuple[str, int, int]
"""Type of a tensor's elements, and begin and end of its data in the file."""


def tensors(file: IO[bytes], size: int) -> dict[str, Tensor]:
    """Return the tensors of a file by name, after comparing its header with its size.

    Raises:
        DamageError: They do not agree.
    """
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    if not 2 <= length <= min(HEADER_BYTES, size - 8):
        raise DamageError(f"the length of its header, {length:,} bytes, is impossible")
    try:
        header = _decode(file.read(length))
        header.pop("__metadata__", None)
        found = {name: _tensor(_decode_tensor(about), 8 + length) for name, about in header.items()}
    except (ValueError, OverflowError, RecursionError):  # msgspec's errors are values
        raise DamageError("its header is damaged") from None
    position = 8 + length
    for name, (_, begin, end) in sorted(found.items(), key=lambda item: item[1][1:]):
        if begin != position or end < begin:
            raise DamageError(f"its header is damaged: {name[:80]} does not begin where the tensor before ends")
        position = end
    if position != size:
        raise DamageError(f"it has {size:,} bytes, and its header describes {position:,}")
    return found


class _About(msgspec.Struct, gc=False):
    """A tensor in the header. Its types refuse other content before that takes memory."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_tensor = msgspec.json.Decoder(_About).decode


def _tensor(about: _About, base: int) -> Tensor:
    begin, end = about.data_offsets
    bits = BITS.get(about.dtype)
    if bits is not None and prod(about.shape) * bits != (end - begin) * 8:
        raise ValueError("shape and offsets disagree")
    return about.dtype, base + begin, base + end


def nonfinite(file: IO[bytes], found: dict[str, Tensor], reader: Reader) -> str:
    """Return the name of the first tensor with NaN or an infinity; empty if there is none."""
    for name, (kind, begin, end) in found.items():
        check = _CHECKS.get(kind)
        if check is not None and any(check(piece) for piece in reader.pieces(file, begin, end)):
            return name
    return ""


def _marks(*bytes_: int) -> bytes:
    """Return a table for `bytes.translate`, with 1 for these bytes and 0 for the others."""
    return bytes(number in bytes_ for number in range(256))


# Of a NaN and an infinity all bits of the exponent are set. Its upper bits alone are so only of very large numbers, which
# are checked one by one. Pieces begin at an element, since their length is a multiple of 8.
_TOP = _marks(0x7F, 0xFF)


def _check(width: int, rest: int) -> Callable[[bytes], bool]:
    """Return a check of numbers of *width* bytes; *rest* are the bits of the exponent in the second highest byte."""

    def check(piece: bytes) -> bool:
        high = piece[width - 1 :: width].translate(_TOP)
        place = high.find(1)
        while place >= 0:
            if piece[place * width + width - 2] & rest == rest:
                return True
            place = high.find(1, place + 1)
        return False

    return check


_HALF = _marks(*(number for number in range(256) if number & 0x7C == 0x7C))
_CHECKS: dict[str, Callable[[bytes], bool]] = {
    "BF16": _check(2, 0x80),
    "F32": _check(4, 0x80),
    "F64": _check(8, 0xF0),
    "F16": lambda piece: piece[1::2].translate(_HALF).find(1) >= 0,
    "F8_E5M2": lambda piece: piece.translate(_HALF).find(1) >= 0,
    "F8_E4M3": lambda piece: piece.translate(_TOP).find(1) >= 0,
}
