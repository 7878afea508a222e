"""Read a file of records with checksums, which may be damaged anywhere and may still grow."""

import os
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import NamedTuple

from trackside_daemon.history.files.left_out import DAMAGED, LeftOut
from trackside_daemon.linux.foreign_file import open_foreign

PIECE_BYTES = 1024 * 1024  # read at once
TORN = "incomplete last record(s)"


class Span(NamedTuple):
    """Consecutive whole records."""

    data: bytes  # the piece of the file that they are in; empty for a single one that is longer than a piece
    base: int  # position of the piece in the file
    begin: int  # their begin in the piece
    end: int  # their end in the piece


class RecordFile(ABC):
    """One file.

    After a record that is not whole, the next whole one is searched, byte by byte. Until one follows, the record may still
    be written, and is waited for.

    Args:
        path: The file.
        left_out: Counts what is damaged, and at the end what is incomplete.
        begin: Position of the first record.

    Attributes:
        position: Number of bytes that were read, or will never be.

    Raises:
        OSError: The file cannot be opened.
    """

    overlap: int
    """Bytes at the end of a piece in which a record may begin that can be recognised with the next piece only."""

    def __init__(self, path: Path, left_out: LeftOut, begin: int = 0) -> None:
        self.position = begin
        self._name = path.name
        with open_foreign(path) as file:
            self._file = os.dup(file.fileno())
        self._left_out = left_out
        self._damage: int | None = None  # where the damage begins whose end is searched
        self._kind = DAMAGED
        self._waited = (-1, -1)  # size and time of the change after which no further record was whole

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def spans(self, *, final: bool) -> Iterator[Span]:
        """Yield the whole records that were not read before.

        Args:
            final: Whether the file is complete: then the rest is counted as left out.

        Raises:
            OSError: The file cannot be read.
        """
        while (change := self._change()) != self._waited or final:
            base, size = self.position, change[0]
            data = self._bytes(base, base + PIECE_BYTES)
            is_last = len(data) < PIECE_BYTES
            end, goes_on = yield from self._in_piece(data, base, is_last=is_last)
            if not is_last and not goes_on:
                self._begin_damage(base + end, goes_on=False)
                self.position = base + max(end + 1, len(data) - self.overlap)
            elif not is_last and not end and base + self._size(data) <= size:
                self.position = base + self._size(data)
                yield Span(b"", base, 0, self.position - base)
            elif is_last or not end:
                if not final:
                    self._waited = change
                    return
                self._begin_damage(base + end, goes_on=goes_on)
                self.position = base + 1
                if is_last:
                    self._end(size)
                    return

    def _in_piece(self, data: bytes, base: int, *, is_last: bool) -> Generator[Span, None, tuple[int, bool]]:
        """Yield the whole records in a piece; return the end of the last, and whether one begins there that goes on after it."""
        end, goes_on = 0, False
        at = 0 if self._damage is None else self._next(data, 0, base)
        while at >= 0:
            self._end_damage(base + at)
            end, goes_on = self._whole(data, at, base)
            self.position = base + end
            if end > at:
                yield Span(data, base, at, end)
            if goes_on and not is_last:
                break
            at = self._next(data, end + 1, base)
            if at >= 0:
                self._begin_damage(base + end, goes_on=goes_on)
        return end, goes_on

    def _end(self, size: int) -> None:
        """Count the rest of a file as left out."""
        if self._damage is not None and self._damage < size:
            self.leave_out(self._kind, self._damage, size - self._damage)
        self.position, self._damage = size, None

    def leave_out(self, kind: str, place: int, size: int) -> None:
        """Count bytes that are left out."""
        self._left_out.add(kind, f"{self._name} at byte {place:,}", size=size)

    @abstractmethod
    def _whole(self, data: bytes, at: int, base: int) -> tuple[int, bool]:
        """Return the end of the whole records that begin at *at*, and whether what follows may be the begin of one.

        Args:
            data: A piece of the file.
            at: Index in it.
            base: Position of the piece in the file.
        """

    @abstractmethod
    def _next(self, data: bytes, at: int, base: int) -> int:
        """Return the index of the first whole record that begins at *at* or after it; -1 without one."""

    @abstractmethod
    def _size(self, data: bytes) -> int:
        """Return the size of the record that begins a piece, by its head."""

    def _begin_damage(self, place: int, *, goes_on: bool) -> None:
        if self._damage is None:
            self._damage, self._kind = place, TORN if goes_on else DAMAGED

    def _end_damage(self, place: int) -> None:
        if self._damage is not None:
            self.leave_out(DAMAGED, self._damage, place - self._damage)
            self._damage = None

    def _change(self) -> tuple[int, int]:
        """Return the size and the time of the last change."""
        status = os.fstat(self._file)
        return status.st_size, status.st_mtime_ns

    def _bytes(self, begin: int, end: int) -> bytes:
        return os.pread(self._file, end - begin, begin)
