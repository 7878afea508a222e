"""Read pixels from what training code has: arrays, tensors, pictures of Pillow, figures of Matplotlib, PNG files."""

from __future__ import annotations

import io
import struct
import sys
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from trackside.limits import ARRAY_SIDE, IMAGE_PIXELS, IMAGE_SIDE, MEDIA_BYTES

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


class Pixels(NamedTuple):
    """Rows of pixels of 8 bits a channel, from the top left; *channels* is 1 for gray, 3 for RGB, 2 and 4 with alpha."""

    width: int
    height: int
    channels: int
    data: bytes

    def png(self) -> bytes:
        """Return a PNG that is small enough; every second pixel is left out until it fits."""
        image = self
        while len(data := encode(*image)) > MEDIA_BYTES["image"]:
            image = image.halved()
        return data

    def halved(self) -> Pixels:
        """Return each second pixel of each second row."""
        row, channels = self.width * self.channels, self.channels
        width, height = (self.width + 1) // 2, (self.height + 1) // 2
        halved = bytearray()
        for start in range(0, self.height * row, 2 * row):
            line = bytearray(width * channels)
            for channel in range(channels):
                line[channel::channels] = self.data[start + channel : start + row : 2 * channels]
            halved += line
        return Pixels(width, height, channels, bytes(halved))


def read(image: Any) -> Pixels | bytes:
    """Return the pixels of an image, copied; of a PNG file its bytes. A tensor on a device is waited for.

    Args:
        image: A PNG file as bytes; a Matplotlib figure; a Pillow image; an array or tensor of height x width, with one to
            four channels last or, as PyTorch has them, first. Numbers are 0 to 255 if whole, 0 to 1 if not.

    Raises:
        ValueError: It is none of these. Its methods may raise anything else.
    """
    if isinstance(image, bytes | bytearray):
        return _png(bytes(image))
    if hasattr(image, "savefig"):
        file = io.BytesIO()
        image.savefig(file, format="png")
        return _png(file.getvalue())
    if hasattr(image, "convert") and hasattr(image, "getbands"):
        return _of_pillow(image)
    if hasattr(image, "detach"):
        return _of_array(host_array(image), is_tensor=True)
    if hasattr(image, "astype") and hasattr(image, "ndim"):
        return _of_array(image)
    raise ValueError(f"a {type(image).__name__} is no image")


def _png(data: bytes) -> bytes:
    if not data.startswith(SIGNATURE):
        raise ValueError("these bytes are no PNG file")
    if len(data) > MEDIA_BYTES["image"]:
        raise ValueError(f"a PNG file of {len(data)} bytes is too large; at most {MEDIA_BYTES['image']}")
    try:
        return check(data).data
    except PngError as error:
        raise ValueError(f"this PNG file cannot be used: {error}") from None


def _of_pillow(image: Any) -> Pixels:
    alpha = "A" in image.getbands() or "transparency" in image.info
    image = image.convert("RGBA" if alpha else "L" if image.mode in {"1", "L"} else "RGB")
    if (stride := _stride(*image.size)) > 1:
        image = image.reduce(stride)
    width, height = image.size
    return Pixels(width, height, len(image.getbands()), image.tobytes())


def host_array(tensor: Any) -> Any:
    """Return the numbers of a tensor as an array of NumPy, which has no bfloat16; a device is waited for."""
    tensor = tensor.detach()
    return (tensor.float() if tensor.is_floating_point() else tensor).cpu().numpy()


def _of_array(array: Any, *, is_tensor: bool = False) -> Pixels:
    while array.ndim > 3 and array.shape[0] == 1:
        array = array[0]
    if array.ndim == 2:
        array = array[:, :, None]
    elif array.ndim == 3 and array.shape[0] in range(1, 5) and (is_tensor or array.shape[2] not in range(1, 5)):
        array = array.transpose(1, 2, 0)
    if array.ndim != 3 or array.shape[2] not in range(1, 5) or not array.shape[0] or not array.shape[1]:
        raise ValueError(f"an array of shape {tuple(array.shape)} is no image; height x width x channels is one")
    stride = _stride(array.shape[1], array.shape[0])
    array = array[::stride, ::stride]
    if array.dtype.kind == "f":
        array = sys.modules["numpy"].nan_to_num(array.astype("float32")).clip(0, 1) * 255
    elif array.dtype.kind == "b":
        array = array.astype("uint8") * 255
    elif array.dtype.kind not in "ui":
        raise ValueError(f"an array of {array.dtype} is no image")
    height, width, channels = array.shape
    return Pixels(width, height, channels, array.clip(0, 255).astype("uint8").tobytes())


def _stride(width: int, height: int) -> int:
    return max(1, -(-max(width, height) // ARRAY_SIDE))
