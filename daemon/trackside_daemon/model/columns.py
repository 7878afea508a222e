"""Pushed rows as columns: ingest decodes a block once, and state, history and detectors share the result."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import NamedTuple

from trackside.packing import pack
from trackside.wire import Block


class Columns(NamedTuple):
    """Consecutive rows of one session that have the same keys. Nobody changes the arrays."""

    keys: list[str]  # the keys, each once
    steps: array[int]  # the step of each row
    times: array[int]  # the time of each row, in nanoseconds of the client's monotonic clock
    values: array[float]  # row after row, one value for each key
    aside: bool = False  # the steps are of another count than the training's, as of epochs

    def column(self, index: int) -> array[float]:
        """Return all values of the key with this index."""
        return self.values[index :: len(self.keys)]

    def rows(self, first: int, last: int) -> Columns:
        """Return the rows from *first* up to but without *last*."""
        width = len(self.keys)
        values = self.values[first * width : last * width]
        return Columns(self.keys, self.steps[first:last], self.times[first:last], values, self.aside)

    def block(self) -> Block:
        """Return the rows as the wire writes them."""
        return Block(self.keys, pack("q", self.steps), pack("q", self.times), pack("d", self.values), self.aside)


def decode(blocks: Iterable[Block]) -> list[Columns]:
    """Decode the blocks of one message.

    Raises:
        WireError: The columns of a block differ in length, or a key occurs twice.
    """
    return [Columns(block.keys, *block.columns(), block.aside) for block in blocks]
