"""Runs that ended while no daemon was running: their state, info and end, so that rules see them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.training.rank import RankStatus
from trackside_daemon.training.run import RunStatus

if TYPE_CHECKING:
    from collections.abc import Collection

    from trackside.wire import Identity
    from trackside_daemon.model.metric import Batch
    from trackside_daemon.model.session import Owner
    from trackside_daemon.training.moment import Moment
    from trackside_daemon.training.rank import End

RUNS = 64  # the most runs; with more, the one that was reported first is forgotten


class MissedEnds:
    """The marks of such runs, by run and attempt.

    Args:
        seconds: How long after its end a run's marks stay.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._runs: dict[tuple[str, int], RunStatus] = {}

    def end(self, identity: Identity, name: str, attempt: int, end: End, *, owner: Owner, now: Moment) -> list[Batch]:
        """Apply the end of a rank; return the marks of its run, which has this name."""
        left = min(self._seconds, self._seconds - (now.wall - end.at))  # a clock may have been ahead
        if left <= 0:
            return []
        run = self._runs.setdefault((identity.run, attempt), RunStatus(identity, name, attempt))
        run.owner = owner
        rank = run.ranks.setdefault(identity.rank, RankStatus(run.name, identity.rank, lambda *_: False))
        rank.state = end.state
        rank.end = end
        run.until = now.monotonic + left
        marks = run.marks()
        marks.records = ()  # the history has them already
        batches = [marks]
        if len(self._runs) > RUNS:
            batches += self._runs.pop(next(iter(self._runs))).forget()
        return batches

    def runs(self) -> Collection[RunStatus]:
        """Return the runs that have marks."""
        return self._runs.values()

    def evict(self, name: str) -> list[Batch]:
        """Forget the runs of this name, since a new run's marks replace theirs."""
        replaced = [key for key, run in self._runs.items() if run.name == name]
        return [batch for key in replaced for batch in self._runs.pop(key).forget()]
