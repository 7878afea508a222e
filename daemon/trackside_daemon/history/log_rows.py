"""Encode and decode rows of the log: the pushes of one message as the client sent them."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from operator import add, floordiv
from typing import NamedTuple

import msgspec

from trackside.wire import Block, WireError
from trackside_daemon.model.columns import Columns

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Block]).decode
_INTEGER = struct.Struct("<q")
_NUMBER = struct.Struct("<d")


class PushGroup(NamedTuple):
    """Consecutive pushes with the same keys."""

    keys: list[str]
    steps: array[int]  # one per push
    times: array[int]  # Unix microseconds, one per push
    values: array[float]  # push by push, one value per key

    def column(self, number: int) -> array[float]:
        """Return all values of a key, given by its index."""
        return self.values[number :: len(self.keys)]


class LogRows:
    """Consecutive rows of a stream's log, with an index of their keys.

    Attributes:
        parts: Groups of pushes, each with the number of its row, rising.
        columns: Columns in the index of keys.
    """

    def __init__(self) -> None:
        self.parts: list[tuple[int, PushGroup]] = []
        self.columns = 0
        # Parts with the same keys share a list of part numbers, so the index stays small with many parts of many keys.
        self._alike: dict[tuple[str, ...], list[int]] = {}
        self._columns: dict[str, list[tuple[list[int], int]]] = {}

    def add(self, number: int, data: bytes, shift: int) -> int:
        """Add the next row; return its number of pushes.

        Raises:
            ValueError: The row is damaged.
        """
        added = decode(data, shift)
        for part in added:
            keys = tuple(part.keys)
            alike = self._alike.get(keys)
            if alike is None:
                alike = self._alike[keys] = []
                self.columns += len(keys)
                for column, key in enumerate(keys):
                    self._columns.setdefault(key, []).append((alike, column))
            else:
                part = part._replace(keys=self.parts[alike[0]][1].keys)  # noqa: PLW2901  one list is enough
            alike.append(len(self.parts))
            self.parts.append((number, part))
        return sum(len(part.steps) for part in added)

    def keys(self) -> list[str]:
        """Return the keys in the order in which they began."""
        return list(self._columns)

    def places(self, key: str, after: int = 0) -> list[tuple[int, int]]:
        """Return where a key is in the rows after number *after*: part numbers, and column indices in them."""
        places = [(part, column) for alike, column in self._columns.get(key, ()) for part in alike]
        if len(self._columns.get(key, ())) > 1:
            places.sort()
        return [place for place in places if self.parts[place[0]][0] > after]


def encode(parts: Iterable[Columns]) -> bytes:
    """Return a row's data: the columns as the wire writes them."""
    return _encode([columns.block() for columns in parts])


def decode(data: bytes, shift: int) -> list[PushGroup]:
    """Return the pushes of a row; *shift* is added to their times, in nanoseconds.

    Raises:
        ValueError: The row is damaged.
    """
    try:
        return [_part(block, shift) for block in _decode(data)]
    except (msgspec.MsgspecError, WireError) as error:
        raise ValueError(f"a damaged log row: {error}") from error


def last_push(data: bytes, key: str) -> tuple[int, float] | None:
    """Return step and value of a row's last push with a key, without decoding the rest; None without one.

    Raises:
        ValueError: The row is damaged.
    """
    try:
        for block in reversed(_decode(data)):
            if key in block.keys:
                place = len(block.values) - 8 * (len(block.keys) - block.keys.index(key))
                return _INTEGER.unpack(block.steps[-8:])[0], _NUMBER.unpack_from(block.values, place)[0]
    except (msgspec.MsgspecError, struct.error) as error:
        raise ValueError(f"a damaged log row: {error}") from error
    return None


def _part(block: Block, shift: int) -> PushGroup:
    steps, stamps, values = block.columns()
    return PushGroup(
        block.keys, steps, array("q", map(floordiv, map(add, stamps, repeat(shift)), repeat(1000))), values
    )


def split(parts: Sequence[Columns], pushes: int, size: int) -> Iterator[list[Columns]]:
    """Yield the columns of log rows, split after every *size*-th push of a stream that had *pushes* before them."""
    group: list[Columns] = []
    for columns in parts:
        rows, first = len(columns.steps), 0
        while first < rows:
            last = min(rows, first + size - pushes % size)
            group.append(columns if last - first == rows else columns.rows(first, last))
            pushes += last - first
            first = last
            if pushes % size == 0:
                yield group
                group = []
    if group:
        yield group
