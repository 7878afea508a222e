"""Decode the values of a summary: TensorFlow's summary.proto and tensor.proto, as TensorBoard's plugins use them."""

import struct
from collections.abc import Callable
from math import isfinite
from typing import Any, NamedTuple

from trackside_daemon.http_client import protobuf

TAG, SIMPLE_VALUE, TENSOR, METADATA = 1, 2, 8, 9  # fields of Summary.Value
OTHER_KINDS = {3: "histograms", 4: "images", 5: "histograms", 6: "audio"}

# By dtype of a TensorProto: the field of its numbers, and their format in tensor_content.
_NUMBERS = {1: (5, "<f"), 2: (6, "<d"), 3: (7, "<i"), 4: (7, "<B"), 6: (7, "<b"), 9: (10, "<q"), 10: (11, "<?")}
_BITS = {14: ("<f", "<I", 16), 19: ("<e", "<H", 0)}  # bfloat16 and float16, whose numbers are their bits
_NUMBERS |= dict.fromkeys(_BITS, (13, "<H"))
_STRING = 7

TEXT_BYTES = 64 * 1024  # longest text that is kept


class NonScalar(NamedTuple):
    """A value that is no scalar."""

    kind: str  # ``text``, ``hparams``, or what is not imported: ``images``, ``histograms``, …
    tag: str
    content: Any = None  # the text, or the hyperparameters


class Number(NamedTuple):
    """A scalar."""

    tag: str
    value: float
    place: int | None  # index of the value as a float of 32 bits; None if it is encoded otherwise


def decode(data: bytes, begin: int, end: int, plugins: dict[str, str]) -> Number | NonScalar:
    """Decode a Summary.Value.

    Args:
        data: Bytes of the message and around it.
        begin: Index of its begin.
        end: Index of its end.
        plugins: Plugin of each tag, which only the first value of a tag needs to have.

    Raises:
        ProtobufError: The bytes are no such message.
    """
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for field, kind, first, last in protobuf.fields(data, begin, end):
        found[field, kind] = first, last
    tag = _bytes(data, found.get((TAG, protobuf.BYTES))).decode("utf-8", "replace")
    metadata = _bytes(data, found.get((METADATA, protobuf.BYTES)))
    other = next((OTHER_KINDS[field] for field, _ in found if field in OTHER_KINDS), "")
    if metadata and len(plugins) < 100_000:
        plugins.setdefault(tag, protobuf.text(protobuf.message(metadata, 1), 1))
    if (number := found.get((SIMPLE_VALUE, protobuf.FIXED32))) is not None:
        return Number(tag, protobuf.single(data, number[0]), number[0])
    plugin = plugins.get(tag, "")
    if plugin == "hparams":
        return NonScalar("hparams", tag, hyperparameters(protobuf.message(protobuf.message(metadata, 1), 2)))
    if (tensor := found.get((TENSOR, protobuf.BYTES))) is None:
        return NonScalar(other or plugin or "values of unknown kind", tag)
    return _tensor(tag, plugin, data, *tensor)


def _bytes(data: bytes, span: tuple[int, int] | None) -> bytes:
    return b"" if span is None else data[span[0] : span[1]]


def _tensor(tag: str, plugin: str, data: bytes, begin: int, end: int) -> Number | NonScalar:
    dtype, content, place, texts = 0, None, None, []
    numbers: list[tuple[int, int, int]] = []
    for field, kind, first, last in protobuf.fields(data, begin, end):
        if field == 1 and kind == protobuf.VARINT:
            dtype = protobuf.varint(data, first)[0]
        elif field == 4 and kind == protobuf.BYTES:
            content = first, last
        elif field == 8 and kind == protobuf.BYTES:
            texts.append(data[first:last][:TEXT_BYTES].decode("utf-8", "replace"))
        else:
            numbers.append((field, first, last))
    if dtype == _STRING:
        return NonScalar(plugin or "text", tag, "\n".join(texts)[:TEXT_BYTES])
    if plugin not in ("scalars", "") or dtype not in _NUMBERS:
        return NonScalar(plugin or "tensors", tag)
    field, layout = _NUMBERS[dtype]
    if content is not None:
        if content[1] - content[0] != struct.calcsize(layout):
            return NonScalar(plugin or "tensors", tag)
        place = content[0]
        value = float(struct.unpack_from(layout, data, place)[0])
    else:
        spans = [(first, last) for number, first, last in numbers if number == field]
        value, place, alone = _typed(data, spans, dtype)
        if not alone:
            return NonScalar(plugin or "tensors", tag)
    return Number(tag, _from_bits(value, dtype), place if dtype == 1 else None)


def _from_bits(value: float, dtype: int) -> float:
    """Return the number of a bfloat16 or a float16, given as its bits; that of another type as it is."""
    if dtype not in _BITS:
        return value
    layout, given, shift = _BITS[dtype]
    number: float = struct.unpack(layout, struct.pack(given, (int(value) & 0xFFFF) << shift))[0]
    return number


def _typed(data: bytes, spans: list[tuple[int, int]], dtype: int) -> tuple[float, int | None, bool]:
    """Return the only number of a tensor, the index of it, and whether there is only one; none at all means 0."""
    if not spans:
        return 0.0, None, True
    first, last = spans[0]
    if dtype in (1, 2):
        size = 4 if dtype == 1 else 8
        value = (protobuf.single if dtype == 1 else protobuf.double)(data, first) if last - first >= size else 0.0
        return value, first, len(spans) == 1 and last - first == size
    number, after = protobuf.varint(data, first)
    return float(protobuf.signed(number)), None, len(spans) == 1 and after == last


def hyperparameters(content: bytes) -> dict[str, Any]:
    """Return the values of a session in the data of the plugin hparams, and no others; empty without a session start.

    Raises:
        ProtobufError: The bytes are no such message.
    """
    pairs = protobuf.messages(protobuf.message(content, 3), 1)
    return {protobuf.text(pair, 1): _plain(protobuf.message(pair, 2)) for pair in pairs}


def _plain(value: bytes) -> Any:
    """Return a google.protobuf.Value that is a number, a text or a boolean; others as None."""
    convert: dict[tuple[int, int], Callable[[int, int], Any]] = {
        (2, protobuf.FIXED64): lambda begin, _: _finite(protobuf.double(value, begin)),
        (3, protobuf.BYTES): lambda begin, end: value[begin:end].decode("utf-8", "replace"),
        (4, protobuf.VARINT): lambda begin, _: value[begin] != 0,
    }
    plain = None
    for field, kind, begin, end in protobuf.fields(value):
        if (field, kind) in convert:
            plain = convert[field, kind](begin, end)
    return plain


def _finite(number: float) -> float | int | str:
    if not isfinite(number):
        return str(number)
    return int(number) if number == int(number) and abs(number) < 2**53 else number
