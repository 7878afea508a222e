"""Read the records of W&B's transaction logs: a log of LevelDB with another header and checksum.

The file consists of blocks of 32 KiB. A record is one fragment or several, each with a checksum, a length and a kind, and
no fragment crosses the end of a block: https://github.com/google/leveldb/blob/main/doc/log_format.md.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAGIC = b":W&B\xe1\xbe\x00"
BLOCK_BYTES = 32 * 1024
RECORD_BYTES = 64 * 1024 * 1024  # longest record; a longer one is skipped

_HEAD = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


class LogFile:
    """One log, which may grow.

    Args:
        path: The file.

    Attributes:
        skipped: Number of records that are damaged or too long.

    Raises:
        OSError: The file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.skipped: Counter[str] = Counter()
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        self._position = len(MAGIC)
        self._parts: list[bytes] | None = None

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    @property
    def rest(self) -> int:
        """Number of bytes that were not read."""
        return max(0, os.fstat(self._file).st_size - self._position)

    def read(self) -> Iterator[bytes]:
        """Yield the complete records that were not read before.

        Raises:
            OSError: The file cannot be read.
        """
        while True:
            begin = self._position
            block = os.pread(self._file, BLOCK_BYTES - begin % BLOCK_BYTES, begin)
            at = 0
            whole = (begin + len(block)) % BLOCK_BYTES == 0 and bool(block)
            while at + _HEAD.size <= len(block):
                crc, size, kind = _HEAD.unpack_from(block, at)
                end = at + _HEAD.size + size
                if end > len(block) and not whole:
                    break
                data = block[at + _HEAD.size : end]
                if end > len(block) or zlib.crc32(data, zlib.crc32(bytes([kind]))) != crc:
                    self._damaged()
                    at = len(block)  # where the next record of this block begins is unknown
                    break
                at = end
                record = self._joined(kind, data)
                if record is not None:
                    self._position = begin + at
                    yield record
            if whole and len(block) - at < _HEAD.size:  # padding
                at = len(block)
            self._position = begin + at
            if not whole or not at:
                return

    def _damaged(self) -> None:
        self.skipped["that are damaged"] += 1
        self._parts = None

    def _joined(self, kind: int, data: bytes) -> bytes | None:
        """Return a record that is complete with this fragment; None if it is not."""
        if kind == _FULL:
            self._parts = None
            return data
        if kind == _FIRST:
            self._parts = [data]
        elif self._parts is not None:
            self._parts.append(data)
            if sum(map(len, self._parts)) > RECORD_BYTES:
                self.skipped["that are too long"] += 1
                self._parts = None
            elif kind == _LAST:
                record, self._parts = b"".join(self._parts), None
                return record
        return None
