"""Runs that ended while no daemon saw it: their state, info and end, for rules to see."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.training.rank import Rank
from trackside_daemon.training.run import Run

if TYPE_CHECKING:
    from collections.abc import Collection

    from trackside.wire import Identity
    from trackside_daemon.model.metric import Batch
    from trackside_daemon.training.rank import End

RUNS = 64
"""Of more, those that were told of first are forgotten."""


class Missed:
    """The marks of such runs, by run and attempt.

    Args:
        seconds: How long after its end a run's marks stay.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._runs: dict[tuple[str, int], Run] = {}

    def end(
        self, identity: Identity, attempt: int, end: End, *, live: Collection[str], wall: float, monotonic: float
    ) -> list[Batch]:
        """A rank of an attempt has ended, as is known only now; its run's marks, unless a run of its name is *live*."""
        left = self._seconds - (wall - end.at)
        if left <= 0 or identity.name in live:
            return []
        run = self._runs.setdefault((identity.run, attempt), Run(identity, identity.name, attempt))
        rank = run.ranks.setdefault(identity.rank, Rank(run.name, identity.rank, lambda *_: False))
        rank.state, rank.end, run.until = end.state, end, monotonic + left
        marks = run.marks()
        marks.records = ()  # the history knows
        batches = [marks]
        if len(self._runs) > RUNS:
            batches += self._runs.pop(next(iter(self._runs))).forget()
        return batches

    def evict(self, name: str) -> list[Batch]:
        """A run of this name begins: its marks take the place of those."""
        gone = [key for key, run in self._runs.items() if run.name == name]
        return [batch for key in gone for batch in self._runs.pop(key).forget()]
