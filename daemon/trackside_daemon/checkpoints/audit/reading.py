"""Read files at a limited rate, without displacing what the page cache has for others."""

import io
import mmap
import os
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO

from trackside_daemon.linux.foreign_file import open_checked

PIECE = 1 << 20  # bytes of a read
SMALL = 1 << 16  # shorter reads are those of headers and directories
BLOCK = 4096  # reads past the page cache begin and end at a multiple of it
UNPACKED = 32  # most bytes to read for one on the disk: weights are hardly ever compressible
PARTS = 16  # checksums of a file: they show whether a part of it or all of it has changed


class DamageError(Exception):
    """A file is damaged; the message has the reason, in one line."""


class RefusedError(OSError):
    """A file is not read: it consists of holes, or belongs to another user."""


class _File(io.FileIO):
    """A file whose pieces are read past the page cache (O_DIRECT of open(2)) if its file system can do so.

    That displaces nothing from the cache, and reads what the disk has.
    """

    def __init__(self, handle: int) -> None:
        super().__init__(handle, "rb", closefd=False)
        self._buffer = mmap.mmap(-1, PIECE + 2 * BLOCK)  # its begin is aligned
        try:
            self._direct = os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
        except (OSError, AttributeError):  # AttributeError: not Linux
            self._direct = -1

    def read(self, size: int | None = -1) -> bytes:
        """Read up to *size* bytes, less at the end of the file; all that is left if it is negative."""
        if self._direct < 0 or size is None or not SMALL <= size <= PIECE:
            return super().read(size)
        position = self.tell()
        skipped = position % BLOCK
        try:
            count = os.preadv(
                self._direct, [memoryview(self._buffer)[: -(-(skipped + size) // BLOCK) * BLOCK]], position - skipped
            )
        except OSError:
            self._close_direct()
            return super().read(size)
        data = self._buffer[skipped : min(count, skipped + size)]
        self.seek(position + len(data))
        return data

    def close(self) -> None:
        """Close the file."""
        self._close_direct()
        super().close()

    def _close_direct(self) -> None:
        if self._direct >= 0:
            os.close(self._direct)
            self._direct = -1


class FileReader:
    """Reads files.

    Args:
        rate: Bytes per second; 0 for no limit.
        uid: The user whose files are read; None for all.
    """

    def __init__(self, rate: float = 0.0, uid: int | None = None) -> None:
        self._rate = rate
        self._uid = uid
        self._due = 0.0

    @contextmanager
    def open(self, path: Path) -> Iterator[IO[bytes]]:
        """Open a regular file of the user.

        Raises:
            RefusedError: It is another user's, or consists of holes.
            OSError: It cannot be opened, or is another kind of file.
        """
        handle = open_checked(path, partial(self._refuse, path.name))
        try:
            with _File(handle) as file:
                yield file
                if hasattr(os, "posix_fadvise"):
                    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)

    def _refuse(self, name: str, about: os.stat_result) -> None:
        if self._uid not in {None, about.st_uid}:
            raise RefusedError(f"{name} belongs to another user")
        if about.st_size > SMALL and about.st_blocks * 512 * UNPACKED < about.st_size:
            raise RefusedError(f"{name} consists of holes")

    def pieces(self, file: IO[bytes], begin: int, end: int) -> Iterator[bytes]:
        """Yield the bytes from *begin* to *end*, less if the file is shorter."""
        file.seek(begin)
        while begin < end and (piece := file.read(min(PIECE, end - begin))):
            begin += len(piece)
            yield piece
            self.pace(file, begin, len(piece))

    def pace(self, file: IO[bytes], position: int, size: int) -> None:
        """Wait as long as the rate requires for *size* bytes that end at a position of the file."""
        if not self._rate:
            return
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), max(0, position - size), size, os.POSIX_FADV_DONTNEED)
        now = time.monotonic()
        # What was missed for more than a second is not made up.
        self._due = max(self._due, now - 1.0) + size / self._rate
        if self._due > now:
            time.sleep(self._due - now)

    def sums(self, file: IO[bytes], size: int) -> tuple[int, ...]:
        """Return the CRC-32 of each part of a file."""
        length = max(512, -(-size // PARTS))
        return tuple(self._sum(file, begin, min(size, begin + length)) for begin in range(0, size, length))

    def _sum(self, file: IO[bytes], begin: int, end: int) -> int:
        total = 0
        for piece in self.pieces(file, begin, end):
            total = zlib.crc32(piece, total)
        return total
