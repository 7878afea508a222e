"""Pushed rows on their way into batches: columns of consecutive rows that have the same keys."""

from __future__ import annotations

from trackside.packing import pack
from trackside.wire import Block

BATCH_ROWS = 512
BATCH_BYTES = 256 * 1024
ROW_KEYS = 4096
"""A push of more keys than this, or of longer ones, travels as several rows of one step: no batch outgrows a message."""


class BatchBuilder:
    """Rows on their way into the `Block`s of one batch."""

    def __init__(self) -> None:
        self.rows = 0
        self.values = 0
        self.size = 0
        self._keys: tuple[str, ...] = ()
        self._blocks: list[tuple[tuple[str, ...], list[int], list[int], list[float]]] = []

    def add(self, time: int, step: int, values: dict[str, float]) -> None:
        """Append a row; one with other keys than the last begins a block."""
        keys = tuple(values)
        if keys != self._keys or not self._blocks:
            self._keys = keys
            self._blocks.append((keys, [], [], []))
            self.size += sum(len(key.encode()) + 5 for key in keys)
        _, steps, times, numbers = self._blocks[-1]
        steps.append(step)
        times.append(time)
        numbers.extend(values.values())
        self.rows += 1
        self.values += len(keys)
        self.size += 16 + 8 * len(keys)

    @property
    def full(self) -> bool:
        """It is as large as a batch may be."""
        return self.rows >= BATCH_ROWS or self.size >= BATCH_BYTES

    def blocks(self) -> list[Block]:
        """The rows as the wire has them."""
        return [
            Block(list(map(str.__str__, keys)), pack("q", steps), pack("q", times), pack("d", numbers))
            for keys, steps, times, numbers in self._blocks
        ]


def parts(values: dict[str, float]) -> list[dict[str, float]]:
    """A push as rows that are each small enough for a batch; nearly always as it is."""
    if len(values) <= ROW_KEYS and 4 * sum(map(len, values)) <= BATCH_BYTES:  # UTF-8 has 4 bytes at most a character
        return [values]
    several: list[dict[str, float]] = [{}]
    size = 0
    for key, value in values.items():
        if len(several[-1]) == ROW_KEYS or size > BATCH_BYTES:
            several.append({})
            size = 0
        several[-1][key] = value
        size += len(key.encode())
    return several
