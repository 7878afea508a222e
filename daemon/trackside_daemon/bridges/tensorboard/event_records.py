"""Find the records of an event file, and verify their checksums.

A record is its length in eight bytes, a checksum of the length, an Event message, and a checksum of the message (TFRecord).

In Python a checksum takes microseconds, longer than all the rest of a scalar. A checksum is linear: that of the exclusive or of
messages follows from theirs. So those of the messages of a piece are verified together, in `LANES` groups, and one by one only
where a group does not fit. Two damaged records of one group could cancel each other out only with the same damage.
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING

from trackside_daemon.bridges.record_file import PIECE_BYTES, RecordFile
from trackside_daemon.bridges.tensorboard.crc32c import BITS, MASK, masked, masked_crc, remainder, turned

if TYPE_CHECKING:
    from pathlib import Path

    from trackside_daemon.history.files.left_out import LeftOut

LANES = 61
LONG_BYTES = 4096  # a longer message is verified when something of it is imported: not for images and histograms
LENGTHS = 16_384  # lengths to remember
DOUBTED_BYTES = (
    64 * 1024 * 1024
)  # of records with a wrong checksum, besides twice what was read, before the search is given up

HEAD = struct.Struct("<QI")
_CRC = struct.Struct("<I")
_HEADS = re.compile(rb"(?=(?!\0{4}).{4}\0{4}.{4})", re.DOTALL)  # of records of less than 4 GiB


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
