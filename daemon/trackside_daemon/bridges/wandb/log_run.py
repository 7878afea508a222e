"""Read a run of W&B from its transaction logs; records are those of wandb_internal.proto.

A log is one of LevelDB with another header and checksum: blocks of 32 KiB. A record is one fragment or several, each with a
checksum, a length and a kind: https://github.com/google/leveldb/blob/main/doc/log_format.md. No fragment crosses the end of
a block.
"""

import json
import re
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from trackside_daemon.bridges.foreign_run import ForeignRun
from trackside_daemon.bridges.record_file import RecordFile
from trackside_daemon.history.files.items import Push, RunEntry
from trackside_daemon.history.files.json_format import number
from trackside_daemon.history.files.left_out import DAMAGED, NO_NUMBER, LeftOut
from trackside_daemon.http_client import protobuf

MAGIC = b":W&B\xe1\xbe\x00"
BLOCK_BYTES = 32 * 1024
RECORD_BYTES = 64 * 1024 * 1024  # longest record; a longer one is left out
DOUBTED_BYTES = 64 * 1024 * 1024  # with a wrong checksum, besides 32 times what was read, before the search is given up

INCOMPLETE = "record(s) with a damaged fragment"

_HEAD = struct.Struct("<IHB")
_KIND = 6  # index of the kind in a fragment; the checksum is that of the bytes from there on
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_HEADS = re.compile(rb"(?=.{6}[\1-\4])", re.DOTALL)


class LogFile(RecordFile):
    """One log, which may grow; see `RecordFile`."""

    overlap = _HEAD.size + 0xFFFF

    def __init__(self, path: Path, left_out: LeftOut) -> None:
        super().__init__(path, left_out, len(MAGIC))
        self._begun: bytearray | None = None  # a record without its last fragment
        self._after = 0  # position after the last part
        self._doubted = 0

    def read(self, *, final: bool = True) -> Iterator[tuple[int, bytes]]:
        """Yield the complete records that were not read before, each with the place where its last fragment begins.

        Raises:
            OSError: The file cannot be read.
        """
        for data, base, begin, end in self.spans(final=final):
            at = begin
            while (at := _unpadded(data, at, base)) < end:
                _, size, kind = _HEAD.unpack_from(data, at)
                record = self._joined(kind, data[at + _HEAD.size : at + _HEAD.size + size], base + at)
                self._after = base + at + _HEAD.size + size
                if record is not None:
                    yield base + at, record
                at += _HEAD.size + size
        if final:
            self._drop()

    def _whole(self, data: bytes, at: int, base: int) -> tuple[int, bool]:
        while True:
            begin = _unpadded(data, at, base)
            if begin + _HEAD.size > len(data):
                return at, True
            crc, size, kind = _HEAD.unpack_from(data, begin)
            end = begin + _HEAD.size + size
            if not _FULL <= kind <= _LAST:
                return at, False
            if end > len(data):
                return at, True
            if zlib.crc32(data[begin + _KIND : end]) != crc:
                return at, False
            at = end

    def _next(self, data: bytes, at: int, base: int) -> int:
        for found in _HEADS.finditer(data, at):
            begin = found.start()
            crc, size, _ = _HEAD.unpack_from(data, begin)
            end = begin + _HEAD.size + size
            if end <= len(data) and self._doubted < DOUBTED_BYTES + 32 * base:  # else a hostile file
                if zlib.crc32(data[begin + _KIND : end]) == crc:
                    return begin
                self._doubted += size
        return -1

    def _size(self, data: bytes) -> int:
        return _HEAD.size + int(_HEAD.unpack_from(data)[1])

    def _joined(self, kind: int, data: bytes, place: int) -> bytes | None:
        """Return a record that is complete with this fragment, which lies at a place; None if it is not."""
        if kind in (_FULL, _FIRST) or place - self._after >= _HEAD.size:  # not: padding
            self._drop()
        if kind == _FULL:
            return data
        if kind == _FIRST:
            self._begun = bytearray()
        if self._begun is None:  # what begins the record is damaged
            self._left_out.add(INCOMPLETE, count=kind == _LAST, size=len(data))
            return None
        self._begun += data
        if len(self._begun) > RECORD_BYTES:
            self._drop()
        elif kind == _LAST:
            record, self._begun = bytes(self._begun), None
            return record
        return None

    def _drop(self) -> None:
        if self._begun is not None:
            self._left_out.add(INCOMPLETE, self._name, size=len(self._begun))
            self._begun = None


def _unpadded(data: bytes, at: int, base: int) -> int:
    """Return the index after the zeros that fill the end of a block, in which no head has room."""
    room = -(base + at) % BLOCK_BYTES
    return at + room if room < _HEAD.size and not data[at : at + room].strip(b"\0") else at


_HISTORY, _CONFIG, _STATS, _RUN, _EXIT, _ENVIRONMENT = 2, 5, 7, 17, 18, 26  # fields of Record
_KEY, _NESTED_KEY, _VALUE_JSON = 1, 2, 16  # fields of an item of history, configuration and statistics
_VALUE_JSON_TEXT = 8  # the same of later versions; they may also write booleans, integers, numbers and texts as such

DEPTH = 8  # levels of nested values
SYSTEM = "system/"
"""Beginning of the keys of system metrics, which have the step of the history row before them."""


class LogRun(ForeignRun):
    """A run of W&B.

    Args:
        id: Its id.
        paths: Its logs, one for each attempt, oldest first.
    """

    live = True

    def __init__(self, id: str, paths: Sequence[Path]) -> None:  # noqa: A002  the field's word
        super().__init__(id, id, str(paths[0]), "W&B")
        self.state, self.cause = "lost", "the log has no end"
        self.paths = paths
        self._logs: list[LogFile] = []
        self._step = 0
        self._readers: dict[int, Callable[[int, bytes], Iterator[Push | RunEntry]]] = {
            _HISTORY: self._history,
            _STATS: self._stats,
        }

    def read(self, *, final: bool = True) -> Iterator[Push | RunEntry]:
        """See `ForeignRun`."""
        self._logs += [LogFile(path, self.left_out) for path in self.paths[len(self._logs) :]]
        for attempt, log in enumerate(self._logs):
            for begin, record in log.read(final=final):
                try:
                    yield from self._record(attempt, record)
                except (protobuf.ProtobufError, RecursionError, ValueError):
                    log.leave_out(DAMAGED, begin, len(record))

    def extend(self, other: ForeignRun) -> None:
        """See `ForeignRun`."""
        if isinstance(other, LogRun):
            self.paths = other.paths

    def close(self) -> None:
        """See `ForeignRun`."""
        for log in self._logs:
            log.close()
        self._logs = []

    def _record(self, attempt: int, record: bytes) -> Iterator[Push | RunEntry]:
        for field, kind, begin, end in protobuf.fields(record):
            if kind != protobuf.BYTES:
                continue
            if field in self._readers:
                yield from self._readers[field](attempt, record[begin:end])
            elif field == _CONFIG:
                self._configure(record[begin:end])
            elif field == _RUN:
                self._describe(record[begin:end])
            elif field == _EXIT:
                code = protobuf.integer(record[begin:end], 1)
                self.ended = True
                self.state, self.cause = ("failed", f"exit status {code}") if code else ("finished", "")
            elif field == _ENVIRONMENT and (program := protobuf.text(record[begin:end], 6)):
                self.about["command"] = [
                    program,
                    *(part.decode("utf-8", "replace") for part in protobuf.messages(record[begin:end], 5)),
                ]

    def _history(self, attempt: int, history: bytes) -> Iterator[Push | RunEntry]:
        values = dict(_items(history, 1))
        time = values.pop("_timestamp", None)
        step = values.pop("_step", None)
        values.pop("_runtime", None)
        self._step = step if isinstance(step, int) else protobuf.integer(protobuf.message(history, 2), 1)
        numbers = self._numbers(values)
        if numbers and isinstance(time, int | float) and (push := self.push(attempt, self._step, time, numbers)):
            yield push

    def _stats(self, attempt: int, stats: bytes) -> Iterator[Push | RunEntry]:
        time = _seconds(protobuf.message(stats, 2))
        numbers = self._numbers({SYSTEM + key: value for key, value in _items(stats, 3)})
        if numbers and (push := self.push(attempt, self._step, time, numbers)):
            yield push

    def _numbers(self, values: dict[str, Any]) -> dict[str, float]:
        """Return the numbers of a row, sorted, since W&B writes the keys of each row in another order."""
        numbers: dict[str, float] = {}
        for key, value in sorted(flattened(values), key=itemgetter(0)):
            try:
                numbers[key] = number(value)
            except (TypeError, ValueError, OverflowError):
                if value is not None:
                    self.left_out.add(NO_NUMBER, key)
        return numbers

    def _configure(self, config: bytes) -> None:
        self.config.update({key: value for key, value in _items(config, 1) if not key.startswith("_wandb")})

    def _describe(self, run: bytes) -> None:
        self.name = protobuf.text(run, 8) or self.name
        self.tags = [tag.decode("utf-8", "replace") for tag in protobuf.messages(run, 10)]
        if host := protobuf.text(run, 13):
            self.about["host"] = host
        self._configure(protobuf.message(run, 4))


def flattened(values: dict[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the values of nested mappings with their keys joined by dots; media, which have a ``_type``, by that."""
    for key, value in values.items():
        if isinstance(value, dict) and "_type" in value:
            yield f"{prefix}{key} ({value['_type']})", value
        elif isinstance(value, dict) and depth < DEPTH:
            yield from flattened(value, f"{prefix}{key}.", depth + 1)
        else:
            yield prefix + str(key), value


def _items(data: bytes, field: int) -> Iterator[tuple[str, Any]]:
    """Yield key and value of the items of a history row, a configuration or statistics."""
    for item in protobuf.messages(data, field):
        names: list[str] = []
        value: Any = None
        for number_, kind, begin, end in protobuf.fields(item):
            if number_ in (_KEY, _NESTED_KEY) and kind == protobuf.BYTES:
                names.append(item[begin:end].decode("utf-8", "replace"))
            elif number_ in (_VALUE_JSON, _VALUE_JSON_TEXT) and kind == protobuf.BYTES:
                value = json.loads(item[begin:end])
            else:
                value = _typed(item, number_, kind, (begin, end))
        yield ".".join(names), value


def _typed(item: bytes, field: int, kind: int, span: tuple[int, int]) -> Any:
    """Return a value that is not written as JSON: a boolean, an integer (zigzag), a number or a text."""
    begin, end = span
    if kind == protobuf.VARINT and field in (4, 5):
        value = protobuf.varint(item, begin)[0]
        return value != 0 if field == 4 else value >> 1 ^ -(value & 1)
    if kind == protobuf.FIXED64 and field == 6:
        return protobuf.double(item, begin)
    return item[begin:end].decode("utf-8", "replace") if kind == protobuf.BYTES and field == 7 else None


def _seconds(timestamp: bytes) -> float:
    return protobuf.integer(timestamp, 1) + protobuf.integer(timestamp, 2) / 1e9
