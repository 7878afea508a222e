"""Runs that ended while no daemon was running: state, info, end and dropped values, so that rules see them."""

from collections import Counter
from collections.abc import Collection

from trackside.wire import Identity
from trackside_daemon.model.families import training as f
from trackside_daemon.model.metric import Batch, Sample
from trackside_daemon.model.session import Owner
from trackside_daemon.training.moment import Moment
from trackside_daemon.training.rank import End, RankStatus
from trackside_daemon.training.run import RunStatus

MAX_RUNS = 64  # the most runs; with more, the one that was reported first is forgotten


class MissedRun(RunStatus):
    """A run that ended while no daemon was running, with the number of values that were dropped, by rank."""

    def __init__(self, identity: Identity, name: str, attempt: int) -> None:
        super().__init__(identity, name, attempt)
        self.dropped: Counter[int] = Counter()


class MissedEnds:
    """The marks of such runs, by run and attempt.

    Args:
        seconds: How long after its end a run's marks stay.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._runs: dict[tuple[str, int], MissedRun] = {}

    def end(
        self, identity: Identity, name: str, attempt: int, end: End, *, owner: Owner, now: Moment, dropped: int = 0
    ) -> list[Batch]:
        """Apply the end of a rank that has *dropped* so many values; return the marks of its run, which has this name."""
        left = min(self._seconds, self._seconds - (now.wall - end.at))  # a clock may have been ahead
        if left <= 0:
            return []
        run = self._runs.setdefault((identity.run, attempt), MissedRun(identity, name, attempt))
        run.owner = owner
        rank = run.ranks.setdefault(identity.rank, RankStatus(run.name, identity.rank, lambda *_: False))
        rank.state = end.state
        rank.end = end
        run.until = now.monotonic + left
        run.dropped[identity.rank] += dropped
        marks = run.marks()
        lost = [(run.ranks[number].labels, values) for number, values in run.dropped.items() if values]
        marks.samples = [*marks.samples, *(Sample(f.DROPPED, labels, values) for labels, values in lost)]
        marks.records = ()  # the history has them already
        batches = [marks]
        if len(self._runs) > MAX_RUNS:
            batches += self._runs.pop(next(iter(self._runs))).forget()
        return batches

    def runs(self) -> Collection[RunStatus]:
        """Return the runs that have marks."""
        return self._runs.values()

    def evict(self, name: str) -> list[Batch]:
        """Forget the runs of this name, since a new run's marks replace theirs."""
        replaced = [key for key, run in self._runs.items() if run.name == name]
        return [batch for key in replaced for batch in self._runs.pop(key).forget()]
