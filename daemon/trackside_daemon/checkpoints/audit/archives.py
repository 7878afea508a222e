"""The archives of ``torch.save``: zip files. Torch.distributed.checkpoint writes many into a file, one behind the other."""

from __future__ import annotations

import io
import zipfile
import zlib
from typing import IO, TYPE_CHECKING

from trackside_daemon.checkpoints.audit.reading import PIECE, UNPACKED, DamageError, RefusedError

if TYPE_CHECKING:
    from trackside_daemon.checkpoints.audit.reading import Reader

_BEGIN, _END = b"PK\x03\x04", b"PK\x05\x06"
_END_BYTES = 22  # of the end of an archive without a comment, as PyTorch writes it


def has_archives(head: bytes, file: IO[bytes], size: int) -> bool:
    """Return whether a file, whose *head* has been read, begins or ends as an archive."""
    return head.startswith(_BEGIN) or _ends_at(file, size)


def read_archives(file: IO[bytes], size: int, reader: Reader) -> int | None:
    """Read all archives of a file, compare the CRC of each member, and return a checksum of all of them.

    None if they have no CRCs, since ``torch.serialization.set_crc32_options(False)`` was set.

    Raises:
        DamageError: An archive or a member is damaged.
        RefusedError: Its members would unpack to more than `UNPACKED` times its size.
    """
    end, total, counted, unpacked = size, 0, 0, 0
    while end > 0:  # the directory of an archive is at its end
        if not _ends_at(file, end):
            raise DamageError("it ends within an archive" if end == size else f"no archive ends at byte {end:,}")
        try:
            with zipfile.ZipFile(_Head(file, end)) as archive:
                members = archive.infolist()
                if not members:
                    raise DamageError(f"the archive that ends at byte {end:,} is empty")
                counted += sum(member.CRC != 0 for member in members)
                unpacked += sum(member.file_size for member in members)
                if unpacked > UNPACKED * size:
                    raise RefusedError(f"its members unpack to more than {UNPACKED} times its size")
                if any(member.CRC for member in members):
                    for member in members:
                        _read(archive, member, file, reader)
                begin = min(member.header_offset for member in members)
                if begin >= end:
                    raise DamageError(f"the archive that ends at byte {end:,} begins behind that")
                end = begin
                total = zlib.crc32(repr([(one.filename, one.CRC, one.file_size) for one in members]).encode(), total)
        except (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError, ValueError) as error:
            raise DamageError(f"in the archive that ends at byte {end:,}: {str(error)[:200]}") from None
    return total if counted else None


def _ends_at(file: IO[bytes], end: int) -> bool:
    file.seek(max(0, end - _END_BYTES))
    return file.read(len(_END)) == _END


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo, file: IO[bytes], reader: Reader) -> None:
    """Read a member; `zipfile` compares its name and its CRC."""
    with archive.open(member) as opened:
        position = member.header_offset
        while piece := opened.read(PIECE):
            position += len(piece)
            reader.pace(file, position, len(piece))


class _Head(io.RawIOBase):
    """A file as if it ended at a position."""

    def __init__(self, file: IO[bytes], end: int) -> None:
        self._file, self._end, self._position = file, end, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._end}[whence]
        if base + offset < 0:
            raise OSError("before the begin of the file")
        self._position = base + offset
        return self._position

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._end - self._position)
        self._file.seek(self._position)
        data = self._file.read(left if size is None or size < 0 else min(size, left))
        self._position += len(data)
        return data
