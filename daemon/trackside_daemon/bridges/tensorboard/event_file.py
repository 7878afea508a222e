"""Read event files of TensorBoard without its libraries: TFRecord files of Event messages.

A record is its length in eight bytes, a checksum of the length, the message, and a checksum of the message. The checksum of
a message is not verified: that would take most of the time. That of a length is, where a message does not make sense.
Nearly all events of a training are a step, a time and one float, and differ from an earlier event in nothing else. So the
bytes around these three are looked up in those of earlier events, and only new ones are decoded.
"""

from __future__ import annotations

import os
import struct
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.bridges.protobuf import (
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
from trackside_daemon.bridges.tensorboard.crc32c import masked_crc
from trackside_daemon.bridges.tensorboard.values import METADATA, OTHER_KINDS, TAG, Number, Value, decode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

CHUNK_BYTES = 1024 * 1024
LARGE_BYTES = 256 * 1024  # of a longer message, only the values that are shorter than this are read
LAYOUTS = 16_384  # surroundings of scalars to remember
LAYOUT_BYTES = 1024  # longest of them

WRITER = "trackside"
"""Name in the first event of files that trackside itself writes."""

_TIME, _STEP, _SUMMARY, _SESSION, _SOURCE = 1, 2, 5, 7, 10  # fields of Event
_KINDS = {_TIME: FIXED64, _STEP: VARINT, _SUMMARY: BYTES, _SESSION: BYTES, _SOURCE: BYTES}
_START = 1  # status of a SessionLog
_HEAD = struct.Struct("<QI")
_LENGTH = struct.Struct("<Q")
_DOUBLE = struct.Struct("<d")
_FLOAT = struct.Struct("<f")

Scalar = tuple[str, int, float, float]
"""Tag, step, Unix seconds, value."""


class Events(NamedTuple):
    """Consecutive events.

    Attributes:
        scalars: Their scalars.
        others: Their other values, with step and time.
        restart: A writer started anew after these events, at this step; None if it did not.
    """

    scalars: list[Scalar]
    others: list[tuple[Value, int, float]]
    restart: int | None = None

    def add(self, values: Iterable[Number | Value], step: int, time: float) -> None:
        """Add the values of an event."""
        for value in values:
            if isinstance(value, Number):
                self.scalars.append((value.tag, step, time, value.value))
            else:
                self.others.append((value, step, time))


class EventFile:
    """One event file, which may grow.

    Args:
        path: The file.

    Attributes:
        position: Number of bytes that were read.
        problem: Reason for which the rest of the file cannot be read; empty if it can.
        skipped: Number of records that make no sense, and of those that are incomplete at the end.
        writer: Name of the program that wrote the file, if it states one.

    Raises:
        OSError: The file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.position = 0
        self.problem = ""
        self.writer = ""
        self.skipped: Counter[str] = Counter()
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        self._tags: dict[bytes, str] = {}
        self._places: dict[int, int] = {}
        self._plugins: dict[str, str] = {}

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def read(self) -> Iterator[Events]:
        """Yield the complete events that were not read before.

        Raises:
            OSError: The file cannot be read.
        """
        while not self.problem:
            data = os.pread(self._file, CHUNK_BYTES, self.position)
            if len(data) < _HEAD.size:
                return
            before = self.position
            yield from self._chunk(data)
            if self.position == before:
                events = self._large(data)
                if events is None:
                    return
                yield events

    @property
    def rest(self) -> int:
        """Number of bytes that were not read."""
        return max(0, os.fstat(self._file).st_size - self.position)

    def _chunk(self, data: bytes) -> Iterator[Events]:  # noqa: C901  a call for each record would double the time
        """Yield the events that are complete in *data*, which begins at the position."""
        events = Events([], [])
        append, tags, places = events.scalars.append, self._tags, self._places
        length_at, time_at, value_at = _LENGTH.unpack_from, _DOUBLE.unpack_from, _FLOAT.unpack_from
        at, whole, base = 0, len(data), self.position
        while at + 12 <= whole:
            begin = at + 12
            end = begin + length_at(data, at)[0]
            if end + 4 > whole:
                break
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
            try:
                restart = self._event(data, begin, end, events)
            except (ProtobufError, struct.error, RecursionError):
                if not self._is_length(data[at : at + 12], base + at):
                    break
                self.skipped["that are damaged"] += 1
                restart = None
            at = end + 4
            if restart is not None:
                self.position = base + at
                yield events._replace(restart=restart)
                events = Events([], [])
                append = events.scalars.append
        self.position = base + at
        if events.scalars or events.others:
            yield events

    def _event(self, data: bytes, begin: int, end: int, events: Events) -> int | None:
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
        events.add(values, step, time)
        if len(values) == 1 and isinstance(values[0], Number) and values[0].place is not None:
            self._remember(data, (begin, rest, end), values[0].tag, values[0].place, step)
        for first, last in found.get(_SOURCE, ()):
            self.writer = text(data[first:last], 1)
        starts = [integer(data[first:last], 1) == _START for first, last in found.get(_SESSION, ())]
        return step if any(starts) else None

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

    def _is_length(self, head: bytes, place: int) -> bool:
        """Return whether the checksum of the length at a place is right; else nothing after it can be found."""
        if _HEAD.unpack(head)[1] == masked_crc(head[:8]):
            return True
        self.problem = f"damaged at byte {place:,}"
        return False

    def _large(self, data: bytes) -> Events | None:
        """Read the record at the position without its large values; return None if it is not complete."""
        begin = self.position + _HEAD.size
        end = begin + _HEAD.unpack_from(data)[0]
        if not self._is_length(data[: _HEAD.size], self.position) or end + 4 > os.fstat(self._file).st_size:
            return None
        time, step = 0.0, 0
        values: list[Number | Value] = []
        try:
            for field, kind, first, last in self._walk(begin, end):
                if field == _TIME and kind == FIXED64:
                    time = double(self._bytes(first, last), 0)
                elif field == _STEP and kind == VARINT:
                    step = signed(varint(self._bytes(first, last), 0)[0])
                elif field == _SUMMARY and kind == BYTES:
                    values += [self._value(*span[2:]) for span in self._walk(first, last) if span[:2] == (1, BYTES)]
        except (ProtobufError, struct.error, RecursionError):
            self.skipped["that are damaged"] += 1
        self.position = end + 4
        events = Events([], [])
        events.add(values, step, time)
        return events

    def _value(self, begin: int, end: int) -> Number | Value:
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
        return Value(kind or self._plugins.get(tag, "") or "tensors", tag)

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

    def _bytes(self, begin: int, end: int) -> bytes:
        return os.pread(self._file, end - begin, begin)
