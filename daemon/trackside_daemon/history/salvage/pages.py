"""Read the rows of a damaged SQLite file page by page, where SQLite itself stops at the first page that is not sound.

Source: https://www.sqlite.org/fileformat2.html. A file of the history has pages of `PAGE_BYTES`, texts in UTF-8, and pointer
maps (auto_vacuum), by which a page has its table also where the pages between them are damaged. The header is not needed.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

PAGE_BYTES = 4096

# Kinds of pages in a pointer map; 0 here for a page that has none.
_ROOT, _FREE, _OVERFLOW_FIRST, _OVERFLOW, _TREE = 1, 2, 3, 4, 5
_MAPPED = PAGE_BYTES // 5  # pages of a pointer map
_MAP_ENTRY = struct.Struct(">BI")

# Types of pages in their first byte. Tables without rowids have the form of an index.
_INTERIOR_INDEX, _INTERIOR, _LEAF_INDEX, _LEAF = 2, 5, 10, 13

# Bytes of a row in its own page: the most in a table, the most in an index, and the fewest where it continues on other pages.
_MOST, _MOST_INDEX, _FEWEST = PAGE_BYTES - 35, (PAGE_BYTES - 12) * 64 // 255 - 23, (PAGE_BYTES - 12) * 32 // 255 - 23

_ZEROS = bytes(PAGE_BYTES)
_DEPTH = 20  # most pages from a leaf to its root
_WORD = 2**32 - 1

_U16, _U32, _F64 = struct.Struct(">H").unpack_from, struct.Struct(">I").unpack_from, struct.Struct(">d").unpack_from
_INTEGER_BYTES = (0, 1, 2, 3, 4, 6, 8, 8, 0, 0)  # of the types of values 0 to 9; 7 is a float

Value = int | float | str | bytes | None


class Wal(NamedTuple):
    """The pages of a WAL."""

    places: Mapping[int, int]  # where in the WAL the newest sound version of each page begins
    pages: int  # the pages of the file at the last commit; 0 without one
    damage: str  # why SQLite would leave out commits that are there; empty if it would not


class Pages:
    """The sound pages of a file and its WAL.

    Args:
        path: The file, which nobody writes.

    Attributes:
        bad: How many pages and rows are not sound, by table.
    """

    def __init__(self, path: Path) -> None:
        self.bad: dict[str, int] = {}
        self._file = os.open(path, os.O_RDONLY)
        self._wal_file = -1
        wal = path.with_name(f"{path.name}-wal")
        self._frames: Mapping[int, int] = {}
        pages = 0
        if wal.exists():
            self._frames, pages, _ = read_wal(wal)
            self._wal_file = os.open(wal, os.O_RDONLY)
        size = os.fstat(self._file).st_size // PAGE_BYTES
        header = self.read(1)
        stated = _U32(header, 28)[0] if header.startswith(b"SQLite format 3\0") else 0
        # A header without sense must not make this walk through pages that never were.
        self._count = pages or (stated if size <= stated < 16 * size + 1024 else size)
        self._kinds = bytearray(self._count + 1)
        self._parents = array("I", bytes(4 * (self._count + 1)))
        self._adopted: dict[int, int] = {}
        self._has_zeros = False
        self._read_maps()

    def close(self) -> None:
        """Close the files."""
        for file in (self._file, self._wal_file):
            if file >= 0:
                os.close(file)

    def read(self, page: int) -> bytes:
        """Return the newest version of a page; fewer bytes if it cannot be read."""
        try:
            if (place := self._frames.get(page)) is not None:
                return os.pread(self._wal_file, PAGE_BYTES, place)
            return os.pread(self._file, PAGE_BYTES, (page - 1) * PAGE_BYTES)
        except OSError:  # a sector that the disk cannot read
            return b""

    def leaves(self, roots: Mapping[int, str]) -> dict[str, array[int]]:
        """Return the pages that have rows, by table.

        Args:
            roots: The tables by their root pages.
        """
        found = array("I")
        unsound = array("I")
        for page in range(1, self._count + 1):
            if self._kinds[page] in {_FREE, _OVERFLOW_FIRST, _OVERFLOW} or _is_map(page):
                continue
            data = self.read(page)
            cells = _cells(data, page)
            if cells is None:
                unsound.append(page)
                self._has_zeros |= self._kinds[page] != 0 and data == _ZEROS
                continue
            kind = data[_begin(page)]
            if kind != _INTERIOR:
                found.append(page)
            if kind in {_INTERIOR, _INTERIOR_INDEX}:
                children = (_U32(data, at)[0] for at in (*cells, _begin(page) + 8))
                self._adopted.update((child, page) for child in children)
        tables: dict[str, array[int]] = {}
        for page in found:
            if (table := self._table(page, roots)) is not None:
                tables.setdefault(table, array("I")).append(page)
        for page in unsound:
            if (table := self._table(page, roots)) is not None:
                self.count_bad(table)
        return tables

    def count_bad(self, table: str) -> None:
        """Count a page or a row of a table that is not sound."""
        self.bad[table] = self.bad.get(table, 0) + 1

    def rows(self, page: int) -> Iterator[tuple[int | None, list[Value]]]:
        """Yield the rows of a page, each with its rowid; None in a table without rowids.

        A row that is damaged has no values. The last value is None if a part of it is on a page that is not sound.
        """
        data = self.read(page)
        kind = data[_begin(page)]
        for at in _cells(data, page) or ():
            try:
                place = at + 4 if kind == _INTERIOR_INDEX else at
                size, place = _varint(data, place)
                rowid: int | None = None
                if kind == _LEAF:
                    rowid, place = _varint(data, place)
                    rowid -= (rowid >> 63) << 64
                most = _MOST if kind == _LEAF else _MOST_INDEX
                row = rowid, _values(self._payload(data, place, size, most, page), size)
            except (ValueError, IndexError, struct.error):
                row = None, []
            yield row

    def _read_maps(self) -> None:
        for first in range(2, self._count + 1, _MAPPED + 1):
            data = self.read(first)
            if len(data) < PAGE_BYTES:
                continue
            for page, (kind, parent) in enumerate(_MAP_ENTRY.iter_unpack(data[: 5 * _MAPPED]), first + 1):
                if page <= self._count and _ROOT <= kind <= _TREE and parent <= self._count:
                    self._kinds[page] = kind
                    self._parents[page] = parent

    def _table(self, page: int, roots: Mapping[int, str]) -> str | None:
        """Return the table of a page; None if it belongs to none, or nothing is known of it."""
        for _ in range(_DEPTH):
            if page in roots or self._kinds[page] == _ROOT:
                return roots.get(page)
            parent = self._parents[page] if self._kinds[page] == _TREE else self._adopted.get(page, 0)
            if not 0 < parent <= self._count:
                return None
            page = parent
        return None

    def _payload(self, data: bytes, at: int, size: int, most: int, page: int) -> bytes:
        """Return the bytes of a row up to the first page that is not sound."""
        local = size
        if size > most:
            local = _FEWEST + (size - _FEWEST) % (PAGE_BYTES - 4)
            local = local if local <= most else _FEWEST
        parts = [data[at : at + local]]
        left, after = size - local, at + local
        while 0 < left < self._count * PAGE_BYTES:
            before, (page,) = page, _U32(data, after)
            known = self._kinds[page] if page <= self._count else _FREE
            data, after = self.read(page), 0
            is_others = known and (known not in {_OVERFLOW_FIRST, _OVERFLOW} or self._parents[page] != before)
            if is_others or len(data) < PAGE_BYTES or (self._has_zeros and data == _ZEROS):
                break
            parts.append(data[4 : 4 + left])
            left -= PAGE_BYTES - 4
        return b"".join(parts)


def read_wal(path: Path) -> Wal:
    """Return the pages of a WAL.

    SQLite reads it up to the first frame that is damaged. Here, each frame is checked by itself, with the sum of the one before.
    """
    frames: list[tuple[int, int, bool]] = []
    with path.open("rb") as file:
        header = file.read(32)
        order = "big" if header[3:4] == b"\x83" else "little"
        sound = header[:3] == b"\x37\x7f\x06" and _checksum(header[:24], b"\0" * 8, order) == header[24:]
        salt, before = (header[16:24] if sound else b""), header[24:]
        while len(frame := file.read(24 + PAGE_BYTES)) == 24 + PAGE_BYTES:
            # Frames with another salt are left from before the WAL began anew.
            fits = (not salt or frame[8:16] == salt) and _checksum(frame[:8] + frame[24:], before, order) == frame[
                16:24
            ]
            if fits:
                salt = frame[8:16]
            frames.append((_U32(frame)[0], _U32(frame, 4)[0], fits))
            before = frame[16:24]
    # What follows the last commit was never committed.
    last = max((number for number, (_, pages, fits) in enumerate(frames) if fits and pages), default=-1)
    del frames[last + 1 :]
    places = {page: 32 + number * (24 + PAGE_BYTES) + 24 for number, (page, _, fits) in enumerate(frames) if fits}
    broken = sum(not fits for _, _, fits in frames) + (bool(frames) and not sound)
    return Wal(places, frames[-1][1] if frames else 0, f"{broken} damaged parts of its WAL" if broken else "")


def _checksum(data: bytes, seed: bytes, order: str) -> bytes:
    words = array("I", data)
    if order == "big":
        words.byteswap()
    first, second = int.from_bytes(seed[:4], "big"), int.from_bytes(seed[4:], "big")
    for left, right in zip(words[::2], words[1::2], strict=True):
        first = (first + left + second) & _WORD
        second = (second + right + first) & _WORD
    return first.to_bytes(4, "big") + second.to_bytes(4, "big")


def _is_map(page: int) -> bool:
    return page >= 2 and (page - 2) % (_MAPPED + 1) == 0


def _begin(page: int) -> int:
    return 100 if page == 1 else 0


def _cells(data: bytes, page: int) -> list[int] | None:
    """Return where the cells of a page of a tree begin; None if it is no such page."""
    begin = _begin(page)
    if len(data) < PAGE_BYTES or data[begin] not in {_INTERIOR_INDEX, _INTERIOR, _LEAF_INDEX, _LEAF}:
        return None
    first = begin + (12 if data[begin] in {_INTERIOR_INDEX, _INTERIOR} else 8)
    count = _U16(data, begin + 3)[0]
    if first + 2 * count > PAGE_BYTES:
        return None
    cells = list(struct.unpack_from(f">{count}H", data, first))
    return cells if all(first + 2 * count <= cell < PAGE_BYTES - 3 for cell in cells) else None


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return an integer of variable length, and the place after it."""
    value = 0
    for place in range(at, at + 8):
        byte = data[place]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, place + 1
    return value << 8 | data[at + 8], at + 9


def _values(payload: bytes, size: int) -> list[Value]:
    """Return the values of a row; the last is None if the payload has fewer bytes than *size*.

    Raises:
        ValueError: The bytes are no row, or more values are missing.
    """
    end, at = _varint(payload, 0)
    types: list[int] = []
    while at < end:
        kind, at = _varint(payload, at)
        types.append(kind)
    if {10, 11} & {*types}:
        raise ValueError("a value of a type that there is not")
    sizes = [_INTEGER_BYTES[kind] if kind < 10 else (kind - 12) // 2 for kind in types]
    if at + sum(sizes) != size or at + sum(sizes[:-1]) > len(payload):
        raise ValueError("the lengths of the values are not that of the row")
    values: list[Value] = []
    for kind, width in zip(types, sizes, strict=True):
        part = payload[at : at + width]
        at += width
        values.append(None if at > len(payload) else _value(kind, part))
    return values


def _value(kind: int, part: bytes) -> Value:
    """Return a value of a type of the format."""
    match kind:
        case 0:
            return None
        case 7:
            return float(_F64(part)[0])
        case 8 | 9:
            return kind - 8
        case _ if kind < 10:
            return int.from_bytes(part, "big", signed=True)
    return part.decode() if kind % 2 else part
