"""Norms over all ranks, where each rank pushes only the sum of squares of its own part of the model."""

from array import array
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Generic, TypeVar

from trackside_daemon.model.columns import Columns

S = TypeVar("S", bound="Hashable")  # a session

# Keys of a sum of squares over a rank's own part, and the key of the norm over all parts.
PARTS = {"grad_norm_local_squared": "grad_norm", "param_norm_local_squared": "param_norm"}

WAITING = 16_384
"""How many parts of a key wait until all ranks have pushed theirs of a step; with more, the oldest steps are dropped.

That is a few megabytes, for good if a rank pushes its part seldom or never."""

# How many steps wait at least, however many ranks there are: ranks differ by what one sends at once.
LEAST_STEPS = 32


@dataclass(frozen=True, slots=True)
class RankNorm(Generic[S]):
    """The part of one rank: its session, the time by that client's clock in nanoseconds, and the sum of squares."""

    session: S
    time: int
    squared: float


class WholeNorms(Generic[S]):
    """The norms of one attempt of a run with *world* ranks. A key that a rank pushes itself is not derived."""

    def __init__(self, world: int) -> None:
        self._world = world
        self._most = max(LEAST_STEPS, WAITING // world)
        self._steps: dict[str, OrderedDict[int, dict[int, RankNorm[S]]]] = {}
        self._pushed: set[str] = set()

    def add(self, session: S, rank: int, pushed: Iterable[Columns]) -> dict[S, list[Columns]]:
        """Add what a rank has pushed; return, by session, the norms of the steps that are complete now."""
        norms: dict[S, list[Columns]] = {}
        for columns in pushed:
            self._pushed.update(key for key in PARTS.values() if key in columns.keys)
            for key in PARTS.keys() & columns.keys:
                if PARTS[key] in self._pushed:
                    continue
                squares = columns.column(columns.keys.index(key))
                rows = zip(columns.steps, columns.times, squares, strict=True)
                complete = self._complete(
                    key, rank, [(step, RankNorm(session, time, value)) for step, time, value in rows]
                )
                for one, derived in _norms(PARTS[key], complete).items():
                    norms.setdefault(one, []).append(derived)
        return norms

    def _complete(
        self, key: str, rank: int, added: Sequence[tuple[int, RankNorm[S]]]
    ) -> list[tuple[int, dict[int, RankNorm[S]]]]:
        """Store parts by step; return the steps that have the parts of all ranks now."""
        steps = self._steps.setdefault(key, OrderedDict())
        complete = []
        for step, part in added:
            parts = steps.setdefault(step, {})
            parts[rank] = part
            if len(parts) == self._world:
                complete.append((step, steps.pop(step)))
        while len(steps) > self._most:
            steps.popitem(last=False)
        return complete


def _norms(key: str, complete: Sequence[tuple[int, dict[int, RankNorm[S]]]]) -> dict[S, Columns]:
    """Return the norms as columns, for each session with the times of its client's clock."""
    rows: dict[S, list[tuple[int, int, float]]] = {}
    for step, parts in complete:
        squared = sum(parts[rank].squared for rank in sorted(parts))  # in a fixed order, since float sums depend on it
        norm = sqrt(squared) if squared >= 0 else squared  # NaN stays NaN
        for part in parts.values():
            rows.setdefault(part.session, []).append((step, part.time, norm))
    return {session: _columns(key, derived) for session, derived in rows.items()}


def _columns(key: str, rows: Sequence[tuple[int, int, float]]) -> Columns:
    steps, times, norms = zip(*rows, strict=True)
    return Columns([key], array("q", steps), array("q", times), array("d", norms))
