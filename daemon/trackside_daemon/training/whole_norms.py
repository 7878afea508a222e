"""The norm of all ranks' gradients, where each has told that of its own part alone."""

from __future__ import annotations

from collections import OrderedDict
from math import sqrt
from typing import TYPE_CHECKING, NamedTuple

from trackside.packing import pack
from trackside.wire import Block

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PARTS = {"grad_norm_local_squared": "grad_norm", "param_norm_local_squared": "param_norm"}
"""Keys of a sum of squares, of which the ranks have disjoint parts, and the key of the norm of all of them."""

WAITING = 16_384
"""So many parts wait of a key of a run until all ranks have told theirs of a step; of more the oldest steps are left out.

They are a few megabytes, which a run has for good of which a rank does not tell its own, or seldom."""

LEAST_STEPS = 32
"""So many steps wait of however many ranks: they differ by what one sends at once."""


class Part(NamedTuple):
    """What a rank has told: its session, the moment by its own clock, and the sum of squares."""

    session: bytes
    time: int
    squared: float


class Wholes:
    """Those of one attempt of a run with *world* ranks. A key that a rank pushes itself is not made."""

    def __init__(self, world: int) -> None:
        self._world = world
        self._most = max(LEAST_STEPS, WAITING // world)
        self._steps: dict[str, OrderedDict[int, dict[int, Part]]] = {}
        self._pushed: set[str] = set()

    def take(self, session: bytes, rank: int, blocks: Iterable[Block]) -> dict[bytes, list[Block]]:
        """What a rank has pushed; by session the norms of the steps that all ranks have told now."""
        made: dict[bytes, list[Block]] = {}
        for pushed in blocks:
            self._pushed.update(key for key in PARTS.values() if key in pushed.keys)
            for key in PARTS.keys() & pushed.keys:
                if PARTS[key] in self._pushed:
                    continue
                steps, times, values = pushed.columns()
                width, place = len(pushed.keys), pushed.keys.index(key)
                told = zip(steps, times, values[place::width], strict=True)
                whole = self._told(key, rank, [(step, Part(session, time, value)) for step, time, value in told])
                for one, block in _blocks(PARTS[key], whole).items():
                    made.setdefault(one, []).append(block)
        return made

    def _told(self, key: str, rank: int, told: Sequence[tuple[int, Part]]) -> list[tuple[int, dict[int, Part]]]:
        """Keep the parts; the steps that are complete by them."""
        steps = self._steps.setdefault(key, OrderedDict())
        whole = []
        for step, part in told:
            parts = steps.setdefault(step, {})
            parts[rank] = part
            if len(parts) == self._world:
                whole.append((step, steps.pop(step)))
        while len(steps) > self._most:
            steps.popitem(last=False)
        return whole


def _blocks(key: str, whole: Sequence[tuple[int, dict[int, Part]]]) -> dict[bytes, Block]:
    """The norms as columns, for each session with the moments of its own clock."""
    rows: dict[bytes, list[tuple[int, int, float]]] = {}
    for step, parts in whole:
        squared = sum(parts[rank].squared for rank in sorted(parts))
        norm = sqrt(squared) if squared >= 0 else squared  # NaN is
        for part in parts.values():
            rows.setdefault(part.session, []).append((step, part.time, norm))
    return {session: _block(key, told) for session, told in rows.items()}


def _block(key: str, told: Sequence[tuple[int, int, float]]) -> Block:
    steps, times, norms = zip(*told, strict=True)
    return Block([key], pack("q", steps), pack("q", times), pack("d", norms))
