"""Read the records of W&B's transaction logs: a log of LevelDB with another header and checksum.

The file consists of blocks of 32 KiB. A record is one fragment or several, each with a checksum, a length and a kind, and
no fragment crosses the end of a block: https://github.com/google/leveldb/blob/main/doc/log_format.md.
"""

from __future__ import annotations

import re
import struct
import zlib
from typing import TYPE_CHECKING

from trackside_daemon.bridges.record_file import RecordFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trackside_daemon.history.files.left_out import LeftOut

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
        self._parts: list[bytes] = []
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
        if self._parts or kind == _FIRST:
            self._parts.append(data)
        else:  # what begins the record is damaged
            self._left_out.add(INCOMPLETE, count=kind == _LAST, size=len(data))
        if sum(map(len, self._parts)) > RECORD_BYTES:
            self._drop()
        elif kind == _LAST and self._parts:
            record, self._parts = b"".join(self._parts), []
            return record
        return None

    def _drop(self) -> None:
        if self._parts:
            self._left_out.add(INCOMPLETE, self._name, size=sum(map(len, self._parts)))
            self._parts = []


def _unpadded(data: bytes, at: int, base: int) -> int:
    """Return the index after the zeros that fill the end of a block, in which no head has room."""
    room = -(base + at) % BLOCK_BYTES
    return at + room if room < _HEAD.size and not data[at : at + room].strip(b"\0") else at
