"""One attempt of a run, and the client sessions that speak of it.

It speaks as several sources: ``training:RUN.ATTEMPT`` for the series that outlive it, ``training:RUN.ATTEMPT:RANK`` for
those that do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trackside_daemon.metric import Batch, Sample
from trackside_daemon.record import Event, Record, Standing
from trackside_daemon.training import families as f

if TYPE_CHECKING:
    from trackside.wire import Identity
    from trackside_daemon.training.rank import Rank


class Session:
    """What the daemon knows of one client session.

    Attributes:
        elsewhere: It speaks, and yet its pid is not here: its process lives in another pid namespace.
    """

    def __init__(self, run: Run, rank: Rank, identity: Identity) -> None:
        self.run = run
        self.rank = rank
        self.identity = identity
        self.heard_at = 0.0
        self.status = self.cause = ""
        self.elsewhere = False

    @property
    def process(self) -> tuple[int, int, str]:
        """What names its process on all machines."""
        return self.identity.pid, self.identity.start, self.identity.boot

    def speak(self, samples: list[Sample]) -> Batch:
        """What its rank says."""
        return self.run.speak(self.identity.rank, samples)


class Run:
    """One attempt of a run.

    Attributes:
        source: The source name of its marks, and the beginning of its ranks'.
        live_until: Monotonic seconds when its ranks' series are forgotten; None while it lives.
        until: The same for its marks.
        forgotten: Its ranks' series have been.
    """

    def __init__(self, identity: Identity, name: str, attempt: int) -> None:
        self.identity = identity
        self.name = name
        self.attempt = attempt
        self.source = f"training:{identity.run}.{attempt}"
        self.ranks: dict[int, Rank] = {}
        self.live_until: float | None = None
        self.until: float | None = None
        self.forgotten = False

    @property
    def ended(self) -> bool:
        """Every rank that was seen has ended."""
        return all(rank.state in f.ENDED for rank in self.ranks.values())

    @property
    def state(self) -> str:
        """The ranks' states as one: what lives counts before what has ended, the worst end before the better."""
        states = {rank.state for rank in self.ranks.values()}
        order = ("running", "stalled", "starting", "failed", "lost", "stopped", "finished")
        return next((state for state in order if state in states), "starting")

    def standing(self) -> Standing:
        """Its state, as the history is told."""
        ends = [rank.ended_at for rank in self.ranks.values() if rank.ended_at is not None]
        causes = sorted({rank.cause for rank in self.ranks.values()} - {""})
        ended = max(ends, default=None) if self.ended else None
        return Standing(self.identity.run, self.attempt, self.state, ", ".join(causes) if self.ended else "", ended)

    def event(self, kind: str, time: float, rank: int | None = None, **fields: Any) -> Event:
        """Something that happened to it."""
        return Event(self.identity.run, self.attempt, time, kind, rank, fields=fields)

    def marks(self, *records: Record) -> Batch:
        """The run's state, info and ends, and what the history is told beside them."""
        identity = self.identity
        numbers = (str(self.attempt), str(identity.world))
        known = (identity.host, identity.git_commit, identity.framework, identity.job_id)
        samples = [Sample(f.RUN_INFO, (self.name, identity.run, *numbers, *known), 1.0)]
        samples += [Sample(f.STATE, (self.name, state), float(state == self.state)) for state in f.STATES]
        samples += [
            Sample(f.ENDED_AT, rank.labels, rank.ended_at) for rank in self.ranks.values() if rank.ended_at is not None
        ]
        return Batch(self.source, samples, complete=True, until=self.until, records=[self.standing(), *records])

    def speak(self, rank: int, samples: list[Sample]) -> Batch:
        """What a rank says."""
        return Batch(f"{self.source}:{rank}", samples, until=self.live_until)

    def forget(self) -> list[Batch]:
        """Batches that take all its series away."""
        return [
            Batch(source, complete=True) for source in (self.source, *(f"{self.source}:{rank}" for rank in self.ranks))
        ]
