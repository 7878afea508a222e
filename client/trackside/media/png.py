"""Encode and check PNG files (W3C Portable Network Graphics, third edition) with the standard library alone."""

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from trackside.limits import IMAGE_PIXELS, IMAGE_SIDE

SIGNATURE = b"\x89PNG\r\n\x1a\n"
_COLORS = {1: 0, 2: 4, 3: 2, 4: 6}  # color types by channels: gray, gray and alpha, RGB, RGB and alpha
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # channels by color type; 3 is a palette
_DEPTHS = {0: {1, 2, 4, 8, 16}, 2: {8, 16}, 3: {1, 2, 4, 8}, 4: {8, 16}, 6: {8, 16}}
_KEPT = frozenset((b"PLTE", b"tRNS"))  # chunks that a picture needs, besides header, data and end


class PngError(ValueError):
    """Bytes that are no PNG that can be shown; the message is the reason."""


class Png(NamedTuple):
    """A checked image, without texts, profiles and other data that a picture does not need."""

    width: int
    height: int
    data: bytes


def encode(width: int, height: int, channels: int, pixels: bytes) -> bytes:
    """Return a PNG of 8 bits a channel; *pixels* are row after row, from the top left."""
    row = width * channels
    rows = b"".join(b"\0" + pixels[start : start + row] for start in range(0, height * row, row))
    header = struct.pack(">IIBBBBB", width, height, 8, _COLORS[channels], 0, 0, 0)
    return _file(header, [], zlib.compress(rows, 6))


def check(data: bytes, *, unpack: bool = True) -> Png:
    """Return an image with its needed chunks alone.

    Args:
        data: The file.
        unpack: Also compare its data with its header, which takes up to 0.1 s for 32 KiB.

    Raises:
        PngError: It is no PNG, is damaged, interlaced or too large.
    """
    chunks = list(_chunks(data))
    if not chunks or chunks[0][0] != b"IHDR" or len(chunks[0][1]) != 13 or chunks[-1][0] != b"IEND":
        raise PngError("it has no header or no end")
    header = chunks[0][1]
    width, height, depth, color, compression, filtering, interlaced = struct.unpack(">IIBBBBB", header)
    if not (0 < width <= IMAGE_SIDE and 0 < height <= IMAGE_SIDE and width * height <= IMAGE_PIXELS):
        raise PngError(
            f"{width} x {height} pixels are too many; at most {IMAGE_SIDE} on a side, and {IMAGE_PIXELS} in all"
        )
    if depth not in _DEPTHS.get(color, ()) or compression or filtering:
        raise PngError("its format is unknown")
    if interlaced:
        raise PngError("it is interlaced; save it without that")
    packed = b"".join(content for kind, content in chunks if kind == b"IDAT")
    if unpack:
        _require_rows(packed, 1 + (width * depth * _CHANNELS[color] + 7) // 8, height)
    kept = [(kind, content) for kind, content in chunks if kind in _KEPT]
    if color == 3 and not any(kind == b"PLTE" and content for kind, content in kept):
        raise PngError("it has no palette")
    return Png(width, height, _file(header, kept, packed))


def _require_rows(packed: bytes, row: int, height: int) -> None:
    unpacker = zlib.decompressobj()
    try:
        rows = unpacker.decompress(packed, row * height + 1)  # a bomb is not unpacked
    except zlib.error as error:
        raise PngError(f"its data is damaged: {error}") from None
    if len(rows) != row * height or any(rows[start] > 4 for start in range(0, len(rows), row)):
        raise PngError("its data does not match its header")


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    if not data.startswith(SIGNATURE):
        raise PngError("it does not begin as a PNG does")
    start = len(SIGNATURE)
    while start < len(data):
        if start + 12 > len(data):
            raise PngError("it is cut off")
        size, kind = struct.unpack_from(">I4s", data, start)
        content = data[start + 8 : start + 8 + size]
        end = start + 8 + size
        if size > len(data) or end + 4 > len(data):
            raise PngError("it is cut off")
        if struct.unpack_from(">I", data, end)[0] != zlib.crc32(kind + content):
            raise PngError("a checksum is wrong")
        yield kind, content
        if kind == b"IEND":
            return
        start = end + 4


def _file(header: bytes, kept: list[tuple[bytes, bytes]], packed: bytes) -> bytes:
    chunks = [(b"IHDR", header), *kept, (b"IDAT", packed), (b"IEND", b"")]
    parts = [struct.pack(">I", len(content)) + kind + content + _checksum(kind, content) for kind, content in chunks]
    return SIGNATURE + b"".join(parts)


def _checksum(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", zlib.crc32(kind + content))
