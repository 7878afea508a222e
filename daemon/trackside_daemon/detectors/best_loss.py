"""The last and the best training loss of each run, for what is said of it at its end."""

from __future__ import annotations

from functools import lru_cache
from math import inf, isfinite
from typing import TYPE_CHECKING

from trackside.packing import unpack
from trackside_daemon.detectors.roles import role
from trackside_daemon.detectors.wording import count, number

if TYPE_CHECKING:
    from trackside.wire import Block


class LossSeen:
    """The loss of one run, as its lowest rank pushes it."""

    __slots__ = ("_best", "_last", "_step", "rank")

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._last: float | None = None
        self._best, self._step = inf, 0

    def accept(self, block: Block) -> None:
        """Pushes that follow one another."""
        at = _column(tuple(block.keys))
        if at is None:
            return
        losses = unpack("d", block.values)[at :: len(block.keys)]
        self._last = losses[-1]
        best = min(filter(isfinite, losses), default=inf)
        if best < self._best:
            self._best = best
            self._step = unpack("q", block.steps)[losses.index(best)]

    def text(self) -> str:
        """In words; empty when there was none."""
        if self._last is None:
            return ""
        best = "" if self._best == inf else f", best {number(self._best)} at step {count(self._step)}"
        return f"last loss {number(self._last)}{best}"


@lru_cache(maxsize=1024)
def _column(keys: tuple[str, ...]) -> int | None:
    """Which key is the training loss: of several the one with the shortest name."""
    losses = [key for key in keys if role(key) == "loss"]
    return keys.index(min(losses, key=len)) if losses else None
