"""A run as the pipeline sees it, batch by batch and second by second, for the tests of run detectors."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from session_records import batch_ingested, session_opened

from trackside.packing import pack
from trackside.wire import Block, Clock, Hello, Identity, Totals
from trackside_daemon.detectors.run_watch import RunWatch
from trackside_daemon.model.checkpoint import Checkpoint
from trackside_daemon.model.families import training as f
from trackside_daemon.model.metric import Batch, Distribution, Sample
from trackside_daemon.model.records import USER_ALERT, Event, SessionOpened
from trackside_daemon.model.session import RankRef, SessionRef

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trackside_daemon.model.finding import Finding
    from trackside_daemon.model.stall import Stall

BEGAN = 1_700_000_000.0
ID = "abc:1.5"
"""A run's id may hold what its sources are written with."""


class Running:
    """A run of some ranks, and its watch.

    Attributes:
        alarms: All findings.
        now: The time in Unix seconds.
    """

    def __init__(self, ranks: int = 1, *, attempt: int = 0, watch: RunWatch | None = None, **settings: Any) -> None:
        self.watch = watch or RunWatch(**settings)
        self.alarms: list[Finding] = []
        self._stalls: dict[tuple[str, int], Stall] = {}
        self.now = BEGAN
        self.attempt = attempt
        self.source = f"training:{ID}.{attempt}"
        self.wait(1)
        self.accept(Batch("ingest", records=[self._opened(rank, ranks) for rank in range(ranks)]))
        self.report("run_restarted" if attempt else "run_started")
        for rank in range(ranks):
            self.state(rank, "starting")

    def accept(self, batch: Batch) -> list[Finding]:
        """Process a batch; return the findings."""
        answered = self.watch.accept(batch)
        self.alarms += answered
        return answered

    def wait(self, seconds: float, tick: float = 1.0) -> None:
        """Let the sampler tick for so many seconds, without any other input."""
        for _ in range(round(seconds / tick)):
            self.now += tick
            self.accept(Batch("cpu", complete=True, time=self.now))

    def push(self, step: int, *ranks: int, **more: Any) -> None:
        """Push a step from some ranks; *more* are arguments of `samples`."""
        for rank in ranks or (0,):
            self.speak(rank, self.samples(rank, step, **more))

    def speak(self, rank: int, samples: list[Sample]) -> None:
        """Process samples of a rank."""
        self.accept(Batch(f"{self.source}:{rank}", samples, subject=RankRef(ID, self.attempt, rank)))

    def samples(
        self,
        rank: int,
        step: int,
        *,
        phases: Mapping[str, float] | None = None,
        wait: float | None = None,
        first_wait: float | None = None,
        dropped: int = 0,
    ) -> list[Sample]:
        """Return the samples that the daemon makes of a push."""
        about = ("net", str(rank))
        samples = [
            Sample(f.STARTED, about, BEGAN),
            Sample(f.RANK_STATE, (*about, "running"), 1.0),
            Sample(f.STEP, about, step),
            Sample(f.LAST_STEP, about, self.now),
            Sample(f.DROPPED, about, dropped),
            Sample(f.STEPS, about, step),
        ]
        samples += [Sample(f.PHASE_SECONDS, (*about, phase), spent) for phase, spent in (phases or {}).items()]
        if wait is not None:
            samples.append(Sample(f.DATA_WAIT, about, Distribution((0,) * 18, wait)))
        if first_wait is not None:
            samples.append(Sample(f.FIRST_WAIT, about, Distribution((0,) * 18, first_wait)))
        return samples

    def beat(self, rank: int, **phases: float) -> None:
        """Send a beat from a rank in a phase."""
        self.speak(rank, [Sample(f.PHASE_SECONDS, ("net", str(rank), phase), spent) for phase, spent in phases.items()])

    def state(self, rank: int, state: str) -> None:
        """Set a rank's state."""
        self.speak(rank, [Sample(f.RANK_STATE, ("net", str(rank), one), float(one == state)) for one in f.STATES])

    def marks(self, state: str, *records: Event) -> None:
        """Set the run's state, and pass *records* along with it."""
        samples = [Sample(f.RUN_INFO, ("net", ID, str(self.attempt), "1", "", "", "", "", ""), 1.0)]
        samples += [Sample(f.STATE, ("net", one), float(one == state)) for one in f.STATES]
        samples.append(Sample(f.ENDED_AT, ("net", "0"), self.now))
        ref = RankRef(ID, self.attempt)
        self.accept(Batch(self.source, samples, complete=True, records=records, subject=ref))

    def event(self, kind: str, rank: int | None = None, time: float | None = None, **fields: Any) -> Event:
        """Return an event of the run."""
        return Event(ID, self.attempt, self.now if time is None else time, kind, rank, fields=fields)

    def report(self, kind: str, rank: int | None = None, time: float | None = None, **fields: Any) -> list[Finding]:
        """Process an event of the run; return the findings."""
        return self.accept(Batch("training", records=[self.event(kind, rank, time, **fields)]))

    def audit(self, step: int, state: str, *, reported: bool = False) -> None:
        """Process a checkpoint that an audit has read, after the event that reports it if there is one."""
        found = "event" if reported else "open"
        if reported:
            event = self.event("checkpoint", 0, step=step)  # as the training states it
            self.accept(Batch("training", records=[replace(event, step=step - 1)]))
        path = f"/runs/step-{step}.pt"
        record = Checkpoint(ID, path, self.attempt, self.now, found, state, step, "torch", 10, self.now)
        self.accept(Batch("checkpoints", records=[record]))

    def losses(self, first: int, *losses: float, key: str = "loss") -> None:
        """Push losses of rank 0."""
        keys = ["lr", key]
        values = [value for loss in losses for value in (0.1, loss)]
        steps = range(first, first + len(losses))
        block = Block(keys, pack("q", steps), pack("q", steps), pack("d", values))
        self.accept(
            Batch("ingest", records=[batch_ingested(SessionRef(bytes(16), ID, "net", self.attempt), 1, [block])])
        )

    def raises(self, title: str, text: str = "", severity: str = "warning") -> list[Finding]:
        """Send an alert of the training code, as run.alert does; return the findings."""
        fields = {"title": title, "severity": severity, "text": text}
        record = Event(ID, 0, self.now, USER_ALERT, 0, 7, fields)
        return self.accept(Batch("ingest", records=[record]))

    def findings_of(self, alert: str, *, over: bool = False) -> list[Finding]:
        """Return the findings of this alert."""
        return [alarm for alarm in self.alarms if alarm.alert == alert and alarm.over == over]

    def stalls(self) -> dict[tuple[str, int], Stall]:
        """Return the current stalls by run and attempt."""
        for stall in self.watch.changed_stalls():
            self._stalls[stall.run, stall.attempt] = stall
        return {key: stall for key, stall in self._stalls.items() if not stall.is_over}

    @property
    def trouble(self) -> list[Finding]:
        """All that is worse than an info."""
        return [alarm for alarm in self.alarms if alarm.severity != "info"]

    def _opened(self, rank: int, world: int) -> SessionOpened:
        identity = Identity(ID, "net", self.attempt, rank, rank, world, world)
        hello = Hello(identity, Clock(0, 0), 0, Totals())
        return session_opened(bytes([rank // 256, rank % 256, *bytes(14)]), hello, "net", self.attempt, BEGAN)
