"""A row of the log: the steps of one message as the client sent them, with the shift to Unix time beside them."""

from __future__ import annotations

from array import array
from itertools import repeat
from operator import add, floordiv
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from trackside.wire import Block, WireError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Block]).decode


class Part(NamedTuple):
    """Consecutive pushes with the same keys.

    Attributes:
        keys: Their keys.
        steps: One a push.
        stamps: Nanoseconds of the client's clock, one a push; with *shift* added, of Unix time.
        values: Push after push, one for each key.
    """

    keys: list[str]
    steps: array[int]
    stamps: array[int]
    values: array[float]
    shift: int

    @property
    def times(self) -> array[int]:
        """Unix microseconds."""
        return array("q", map(floordiv, map(add, self.stamps, repeat(self.shift)), repeat(1000)))

    def column(self, number: int) -> array[float]:
        """All values of the key of that number."""
        return self.values[number :: len(self.keys)]


def encode(blocks: Sequence[Block]) -> bytes:
    """A row's data."""
    return _encode(blocks)


def decode(data: bytes, shift: int) -> list[Part]:
    """What a row holds.

    Raises:
        ValueError: The row is damaged.
    """
    try:
        return [Part(block.keys, *block.columns(), shift) for block in _decode(data)]
    except (msgspec.MsgspecError, WireError) as error:
        raise ValueError(f"a damaged log row: {error}") from error


def aligned(blocks: Sequence[Block], pushes: int, size: int) -> Iterator[list[Block]]:
    """*blocks* cut after each *size*-th push of their stream, which has had *pushes* before them."""
    group: list[Block] = []
    for block in blocks:
        rows, first = len(block.steps) // 8, 0
        while first < rows:
            last = min(rows, first + size - pushes % size)
            group.append(block if last - first == rows else _cut(block, first, last))
            pushes += last - first
            first = last
            if pushes % size == 0:
                yield group
                group = []
    if group:
        yield group


def _cut(block: Block, first: int, last: int) -> Block:
    width = len(block.keys)
    inside = slice(8 * first, 8 * last)
    values = block.values[8 * first * width : 8 * last * width]
    return Block(block.keys, block.steps[inside], block.times[inside], values)
