"""Read pixels from what training code has: arrays, tensors, pictures of Pillow, figures of Matplotlib, PNG files."""

from __future__ import annotations

import io
import sys
from typing import Any, NamedTuple

from trackside.limits import ARRAY_SIDE, MEDIA_BYTES
from trackside.media.png import SIGNATURE, PngError, check, encode


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
