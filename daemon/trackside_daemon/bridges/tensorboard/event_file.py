"""Read event files of TensorBoard without its libraries: TFRecord files of Event messages.

Nearly all events of a training are a step, a time and one float, and differ from an earlier event in nothing else. So the
bytes around these three are looked up in those of earlier events, and only new ones are decoded. The checksum is CRC-32C (Castagnoli),
masked as TFRecord does it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from math import inf
from pathlib import Path
from typing import NamedTuple

from trackside_daemon.bridges.record_file import PIECE_BYTES, RecordFile, Span
from trackside_daemon.bridges.tensorboard.values import METADATA, OTHER_KINDS, TAG, NonScalar, Number, decode
from trackside_daemon.history.files.left_out import DAMAGED, LeftOut
from trackside_daemon.http_client.protobuf import (
    BYTES,
    FIXED32,
    FIXED64,
    VARINT,
    ProtobufError,
    double,
    fields,
    integer,
    message,
    signed,
    text,
    varint,
)

LANES = 61
LONG_BYTES = 4096  # a longer message is verified when something of it is imported: not for images and histograms
LENGTHS = 16_384  # lengths to remember
# Limit of records with a wrong checksum, besides twice what was read; above it the search is given up.
DOUBTED_BYTES = 64 * 1024 * 1024

HEAD = struct.Struct("<QI")
_CRC = struct.Struct("<I")
_HEADS = re.compile(rb"(?=(?!\0{4}).{4}\0{4}.{4})", re.DOTALL)  # of records of less than 4 GiB
LARGE_BYTES = 256 * 1024  # of a longer message, only the values that are shorter than this are read
LAYOUTS = 16_384  # surroundings of scalars to remember
LAYOUT_BYTES = 1024  # longest of them

WRITER = "trackside"
"""Name in the first event of files that trackside itself writes."""

_TIME, _STEP, _SUMMARY, _SESSION, _SOURCE = 1, 2, 5, 7, 10  # fields of Event
_KINDS = {_TIME: FIXED64, _STEP: VARINT, _SUMMARY: BYTES, _SESSION: BYTES, _SOURCE: BYTES}
_START = 1  # status of a SessionLog
_LENGTH = struct.Struct("<Q")
_DOUBLE = struct.Struct("<d")
_FLOAT = struct.Struct("<f")

Scalar = tuple[str, int, float, float]
"""Tag, step, Unix seconds, value."""


class EventRecords(RecordFile):
    """The records of one event file; see `RecordFile`."""

    overlap = HEAD.size - 1

    def __init__(self, path: Path, left_out: LeftOut) -> None:
        super().__init__(path, left_out)
        self._lengths: dict[bytes, tuple[int, int]] = {}
        self._doubt = 0  # up to here, records are verified one by one
        self._doubted = 0

    def _is_right(self, data: bytes, begin: int, end: int) -> bool:
        """Return whether the checksum of a message is right; that of one in the file if there are no *data*."""
        if data:
            return bool(masked_crc(data[begin:end]) == _CRC.unpack_from(data, end)[0])
        crc = BITS
        for at in range(begin, end, PIECE_BYTES):
            crc = remainder(self._bytes(at, min(end, at + PIECE_BYTES)), crc)
        return bool(masked(crc) == _CRC.unpack(self._bytes(end, end + 4))[0])

    def _whole(self, data: bytes, at: int, base: int) -> tuple[int, bool]:
        if base + at >= self._doubt:
            end, goes_on = self._together(data, at)
            if end >= 0:
                return end, goes_on
            self._doubt = base + len(data)
        while at + HEAD.size <= len(data):
            if (found := self._length(data[at : at + HEAD.size])) is None:
                return at, False
            begin, end = at + HEAD.size, at + HEAD.size + found[0]
            if end + 4 > len(data):
                break
            if not self._is_right(data, begin, end):
                self._doubted += end - begin
                return at, False
            at = end + 4
        return at, True

    def _together(self, data: bytes, at: int) -> tuple[int, bool]:
        """Verify the records from *at* on together, and return the end of them, as `_whole` does; -1 if one is damaged."""
        lengths, lanes, whole = self._lengths, [0] * LANES, len(data)
        number, crc_at = int.from_bytes, _CRC.unpack_from
        while at + 12 <= whole:
            begin = at + 12
            found = lengths.get(data[at:begin]) or self._length(data[at:begin])
            if found is None:
                return -1, False
            end = begin + found[0]
            if end + 4 > whole:
                break
            if found[0] <= LONG_BYTES:
                lanes[at % LANES] ^= (
                    number(data[begin:end], "big") << 32 ^ crc_at(data, end)[0] - MASK & BITS ^ found[1]
                )
            at = end + 4
        return (at, True) if all(map(_fits, lanes)) else (-1, False)

    def _length(self, head: bytes) -> tuple[int, int] | None:
        """Return the length of a message, and the checksum of as many zeros; None if its own checksum is wrong."""
        length, crc = HEAD.unpack(head)
        if crc != masked_crc(head[:8]):
            return None
        if len(self._lengths) >= LENGTHS:
            self._lengths.clear()
        zeros = turned(remainder(bytes(length), BITS) ^ BITS) if length <= LONG_BYTES else 0
        self._lengths[head] = length, zeros
        return length, zeros

    def _next(self, data: bytes, at: int, base: int) -> int:
        if self._doubted > DOUBTED_BYTES + 2 * base:  # a hostile file
            return -1
        heads = (found.start() for found in _HEADS.finditer(data, at))
        return next((one for one in heads if self._length(data[one : one + HEAD.size]) is not None), -1)

    def _size(self, data: bytes) -> int:
        return HEAD.size + int(HEAD.unpack_from(data)[0]) + _CRC.size


def _fits(lane: int) -> bool:
    """Return whether the checksum of messages, in the upper bits, is the one that their checksums make, in the lower 32."""
    messages = lane >> 32
    return turned(remainder(messages.to_bytes((messages.bit_length() + 7) // 8, "big"))) == lane & BITS


class EventChunk(NamedTuple):
    """Consecutive events."""

    scalars: list[Scalar]
    others: list[tuple[NonScalar, int, float]]  # their other values, with step and time
    restart: int | None = None  # a writer started anew after these events, at this step; None if it did not

    def add(self, values: Iterable[Number | NonScalar], step: int, time: float) -> None:
        """Add the values of an event."""
        for value in values:
            if isinstance(value, Number):
                self.scalars.append((value.tag, step, time, value.value))
            else:
                self.others.append((value, step, time))

    @property
    def begins(self) -> float:
        """Time of the first one; minus infinity if it has none."""
        time = self.scalars[0][2] if self.scalars else self.others[0][2] if self.others else -inf
        return time if time == time else -inf  # noqa: PLR0124  not NaN

    def split(self, until: float) -> tuple[EventChunk, EventChunk | None]:
        """Return the events until a time, at least one, and the later ones, if there are any."""
        scalars = self.scalars
        if not scalars or not scalars[-1][2] > until:
            return self, None
        end = next((place for place in range(1, len(scalars)) if scalars[place][2] > until), len(scalars))
        if end == len(scalars):
            return self, None
        return EventChunk(scalars[:end], []), self._replace(scalars=scalars[end:])


class EventFile(EventRecords):
    """One event file, which may grow; see `RecordFile`.

    Attributes:
        writer: Name of the program that wrote the file, if it states one.
    """

    def __init__(self, path: Path, left_out: LeftOut) -> None:
        super().__init__(path, left_out)
        self.writer = ""
        self._tags: dict[bytes, str] = {}
        self._places: dict[int, int] = {}
        self._plugins: dict[str, str] = {}

    @property
    def begins(self) -> float:
        """Time of the first event; minus infinity if it cannot be read."""
        head = self._bytes(0, 21)
        time = _DOUBLE.unpack_from(head, 13)[0] if len(head) == 21 and head[12] == 9 else -inf
        return float(time) if time == time else -inf  # noqa: PLR0124

    def read(self, *, final: bool = True) -> Iterator[EventChunk]:
        """Yield the whole events that were not read before; see `spans`.

        Raises:
            OSError: The file cannot be read.
        """
        for span in self.spans(final=final):
            if span.data:
                yield from self._events(span)
            else:
                yield self._large(span.base + HEAD.size, span.base + span.end - 4)

    def _events(self, span: Span) -> Iterator[EventChunk]:
        """Yield the events in a span."""
        data, base, at, whole = span
        events = EventChunk([], [])
        append, tags, places = events.scalars.append, self._tags, self._places
        length_at, time_at, value_at = _LENGTH.unpack_from, _DOUBLE.unpack_from, _FLOAT.unpack_from
        while at < whole:
            begin = at + 12
            end = begin + length_at(data, at)[0]
            try:
                if end - begin > 16 and data[begin] == 9:  # the time, as a double
                    step, rest = 0, begin + 9
                    if data[rest] == 16:
                        step, rest = data[rest + 1], rest + 2
                        if step > 127:
                            step, rest = varint(data, rest - 1)
                            step = signed(step)
                    place = rest + places.get(end - rest, 0)
                    tag = tags.get(data[rest:place] + data[place + 4 : end])
                    if tag is not None:
                        append((tag, step, time_at(data, begin + 1)[0], value_at(data, place)[0]))
                        at = end + 4
                        continue
                restart = self._event(data, begin, end, events)
            except (ProtobufError, struct.error, RecursionError):
                self.leave_out(DAMAGED, base + at, end + 4 - at)
                restart = None
            at = end + 4
            if restart is not None:
                yield events._replace(restart=restart)
                events = EventChunk([], [])
                append = events.scalars.append
        if events.scalars or events.others:
            yield events

    def _event(self, data: bytes, begin: int, end: int, events: EventChunk) -> int | None:
        """Add the values of an event; return the step if a writer starts anew with it."""
        if begin == end:  # zeros, as a crash of the machine leaves them
            raise ProtobufError("an event is empty")
        found: dict[int, list[tuple[int, int]]] = {}
        rest = begin
        for field, kind, first, last in fields(data, begin, end):
            if _KINDS.get(field) == kind:
                found.setdefault(field, []).append((first, last))
                rest = last if field in (_TIME, _STEP) else rest
        time = double(data, found[_TIME][-1][0]) if _TIME in found else 0.0
        step = signed(varint(data, found[_STEP][-1][0])[0]) if _STEP in found else 0
        values = [
            decode(data, *span[2:], self._plugins)
            for summary in found.get(_SUMMARY, ())
            for span in fields(data, *summary)
            if span[:2] == (1, BYTES)
        ]
        self._check_long(data, begin, end, values)
        events.add(values, step, time)
        if len(values) == 1 and isinstance(values[0], Number) and values[0].place is not None:
            self._remember(data, (begin, rest, end), values[0].tag, values[0].place, step)
        for first, last in found.get(_SOURCE, ()):
            self.writer = text(data[first:last], 1)
        starts = [integer(data[first:last], 1) == _START for first, last in found.get(_SESSION, ())]
        return step if any(starts) else None

    def _check_long(self, data: bytes, begin: int, end: int, values: Iterable[Number | NonScalar]) -> None:
        """Verify a message that is not verified yet because of its length, if something of it is imported."""
        imported = any(isinstance(value, Number) or value.content is not None for value in values)
        if end - begin > LONG_BYTES and imported and not self._is_right(data, begin, end):
            raise ProtobufError("the checksum is wrong")

    def _remember(self, data: bytes, span: tuple[int, int, int], tag: str, place: int, step: int) -> None:
        """Remember the surroundings of a scalar if its event begins with time and step."""
        begin, rest, end = span
        size = 0 if step == 0 else (step.bit_length() + 6) // 7 + 1
        plain = step >= 0 and data[begin] == 9 and rest == begin + 9 + size and (not size or data[begin + 9] == 16)
        if plain and end - rest <= LAYOUT_BYTES:
            if len(self._tags) >= LAYOUTS:
                self._tags.clear()
            # Events of one length nearly always have their value at one place; if not, they are decoded each time.
            if self._places.setdefault(end - rest, place - rest) == place - rest:
                self._tags[data[rest:place] + data[place + 4 : end]] = tag

    def _large(self, begin: int, end: int) -> EventChunk:
        """Read a message in the file without its large values."""
        events = EventChunk([], [])
        time, step = 0.0, 0
        values: list[Number | NonScalar] = []
        try:
            for field, kind, first, last in self._walk(begin, end):
                if field == _TIME and kind == FIXED64:
                    time = double(self._bytes(first, last), 0)
                elif field == _STEP and kind == VARINT:
                    step = signed(varint(self._bytes(first, last), 0)[0])
                elif field == _SUMMARY and kind == BYTES:
                    values += [self._value(*span[2:]) for span in self._walk(first, last) if span[:2] == (1, BYTES)]
            self._check_long(b"", begin, end, values)
            events.add(values, step, time)
        except (ProtobufError, struct.error, RecursionError):
            self.leave_out(DAMAGED, begin - HEAD.size, end + 4 - begin + HEAD.size)
        return events

    def _value(self, begin: int, end: int) -> Number | NonScalar:
        """Read a value; of a large one only its tag and its kind."""
        if end - begin <= LARGE_BYTES:
            return decode(self._bytes(begin, end), 0, end - begin, self._plugins)
        tag = kind = ""
        for field, _, first, last in self._walk(begin, end):
            if field == TAG:
                tag = self._bytes(first, min(last, first + LAYOUT_BYTES)).decode("utf-8", "replace")
            elif field == METADATA and last - first <= LARGE_BYTES:
                kind = kind or text(message(self._bytes(first, last), 1), 1)
            kind = OTHER_KINDS.get(field, kind)
        return NonScalar(kind or self._plugins.get(tag, "") or "tensors", tag)

    def _walk(self, begin: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield the fields of a message in the file without their values, as `fields` does."""
        while begin < end:
            head = self._bytes(begin, min(end, begin + 20))
            key, at = varint(head, 0)
            size = varint(head, at)[1] - at if key & 7 == VARINT else 0
            if key & 7 == BYTES:
                size, at = varint(head, at)
            elif key & 7 in (FIXED64, FIXED32):
                size = 8 if key & 7 == FIXED64 else 4
            if begin + at + size > end or not at + size:
                raise ProtobufError("a field is cut off")
            yield key >> 3, key & 7, begin + at, begin + at + size
            begin += at + size


_POLYNOMIAL = 0x82F63B78  # bits in reverse order
MASK = 0xA282EAD8
BITS = 0xFFFFFFFF


def _row(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE = [_row(byte) for byte in range(256)]


def remainder(data: bytes, begin: int = 0) -> int:
    """Return the remainder of the polynomial of some bytes, without the inversions of a checksum."""
    for byte in data:
        begin = _TABLE[(begin ^ byte) & 0xFF] ^ begin >> 8
    return begin


def masked_crc(data: bytes) -> int:
    """Return the masked checksum."""
    return masked(remainder(data, BITS))


def masked(found: int) -> int:
    """Return the masked checksum of bytes that leave a remainder: `turned`, and `MASK` added."""
    return (turned(found ^ BITS) + MASK) & BITS


def turned(crc: int) -> int:
    """Return a remainder with its bits turned, as masking does first."""
    return (crc >> 15 | crc << 17) & BITS
