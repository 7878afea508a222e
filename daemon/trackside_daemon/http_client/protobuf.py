"""Read the wire format of Protocol Buffers without a schema: https://protobuf.dev/programming-guides/encoding/."""

import struct
from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types

_DOUBLE = struct.Struct("<d")
_FLOAT = struct.Struct("<f")


class ProtobufError(ValueError):
    """The bytes are no message."""


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Return an unsigned integer of 64 bits, and the index after it.

    Raises:
        ProtobufError: It is cut off, or too long.
    """
    number = shift = 0
    while shift < 70:
        try:
            byte = data[at]
        except IndexError:
            break
        number |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return number & 0xFFFF_FFFF_FFFF_FFFF, at
        shift += 7
    raise ProtobufError("an integer is cut off")


def fields(data: bytes, at: int = 0, end: int | None = None) -> Iterator[tuple[int, int, int, int]]:
    """Yield the fields of a message: number, wire type, and the begin and the end of the value in *data*.

    Raises:
        ProtobufError: The bytes are no message.
    """
    end = len(data) if end is None else end
    while at < end:
        key, at = varint(data, at)
        kind = key & 7
        if kind == BYTES:
            size, at = varint(data, at)
        elif kind == VARINT:
            size = varint(data, at)[1] - at
        elif kind in (FIXED64, FIXED32):
            size = 8 if kind == FIXED64 else 4
        else:
            raise ProtobufError(f"wire type {kind} is unknown")
        if at + size > end:
            raise ProtobufError("a field is cut off")
        yield key >> 3, kind, at, at + size
        at += size


def messages(data: bytes, number: int) -> list[bytes]:
    """Return the values of the fields with this number that have a length: texts, bytes and messages.

    Raises:
        ProtobufError: The bytes are no message.
    """
    return [data[begin:end] for field, kind, begin, end in fields(data) if field == number and kind == BYTES]


def message(data: bytes, number: int) -> bytes:
    """Return the last of `messages`; empty if there is none."""
    place = 0, 0
    for field, kind, begin, end in fields(data):
        if field == number and kind == BYTES:
            place = begin, end
    return data[slice(*place)]


def text(data: bytes, number: int) -> str:
    """Return a text, with replacements for what is not UTF-8; empty if there is none."""
    return message(data, number).decode("utf-8", "replace")


def integer(data: bytes, number: int) -> int:
    """Return a signed integer of 64 bits; 0 if there is none."""
    found = 0
    for field, kind, begin, _ in fields(data):
        if field == number and kind == VARINT:
            found = signed(varint(data, begin)[0])
    return found


def signed(number: int) -> int:
    """Return an unsigned integer of 64 bits as int64."""
    return number - (1 << 64) if number >> 63 else number


def double(data: bytes, begin: int) -> float:
    """Return the double at an index."""
    return float(_DOUBLE.unpack_from(data, begin)[0])


def single(data: bytes, begin: int) -> float:
    """Return the float of 32 bits at an index."""
    return float(_FLOAT.unpack_from(data, begin)[0])
