"""Ranks that died, each with its cause; the book makes one alert of those of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.detectors.wording import count
from trackside_daemon.model.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trackside_daemon.detectors.clock import Clock
    from trackside_daemon.detectors.run_rank import Rank
    from trackside_daemon.model.records import Alert, Event

OLD = 900.0
"""Seconds after which a death is no news, and its alert is over."""

WORKER = 60.0
"""A data loader's worker that died so shortly before or after a rank is the likely cause."""

WAIT = 1.5
"""Seconds for which an exception waits, since a worker that caused it is seen with the next tick."""

ALERTS = ("TrainingProcessDied", "OomKilled")
"""All that can be found, by name."""

OUT_OF_MEMORY = "OOM killed"
RANKS = 8192

Who = tuple[str, int, int]
"""A run's id, its attempt and a rank."""


class Death(NamedTuple):
    """How a rank of a run ended.

    Attributes:
        rank: None where only its run is known to have ended.
        state: ``failed`` or ``lost``.
        cause: In a word.
        seen: When it was told, in watched seconds.
        step: The last that was pushed; None for unknown.
    """

    run: str
    name: str
    rank: int | None
    time: float
    state: str
    cause: str
    seen: float
    step: int | None = None

    @property
    def alert(self) -> str:
        """Under which name it is told."""
        return "OomKilled" if self.cause == OUT_OF_MEMORY else "TrainingProcessDied"

    def alarm(self, worker: str = "", over: tuple[float, str] | None = None) -> Finding:
        """It, with what a data loader's *worker* died of; or that it is *over*, since when and why."""
        labels = (("run", self.name),) if self.rank is None else (("rank", str(self.rank)), ("run", self.name))
        if over is not None:
            return Finding(self.alert, "critical", labels, *over, over=True, run=self.run)
        who = f"run {self.name}" if self.rank is None else f"rank {self.rank} of run {self.name}"
        text = f"{worker} {_look(self)}".strip()
        at = "" if self.step is None else f", at step {count(self.step)},"
        summary = f"{who}{at} {_how(self)}"
        evidence = {"cause": self.cause or self.state}
        return Finding(*(self.alert, "critical", labels, self.time, summary, text), run=self.run, evidence=evidence)


class Deaths:
    """`TrainingProcessDied` and `OomKilled`, of all runs, by the events of their ends."""

    def __init__(self) -> None:
        self._told: dict[Who, Death] = {}
        self._adopted: list[Alert] = []
        self._waiting: dict[Who, Death] = {}
        self._workers: dict[tuple[str, int], tuple[float, str]] = {}

    def restore(self, kept: Alert, clock: Clock) -> None:
        """A death that fired before this daemon: nobody knows of which attempt it was, which is not this or a later one."""
        if kept.run:
            rank = int(kept.labels["rank"]) if "rank" in kept.labels else None
            cause = OUT_OF_MEMORY if kept.alert == "OomKilled" else str(kept.evidence.get("cause", ""))
            name = kept.labels.get("run", kept.run)
            self._told[kept.run, -1, rank or 0] = Death(kept.run, name, rank, kept.started, "failed", cause, clock.at)
            self._adopted.append(kept)

    def died(self, event: Event, name: str, clock: Clock, step: int | None = None) -> Iterator[Finding]:
        """A rank has ended, at a *step* where that is known; whether by itself and not well."""
        state, cause = str(event.fields.get("state", "")), str(event.fields.get("cause", ""))
        if state not in {"failed", "lost"} or (clock.now and clock.now - event.time > OLD):
            return
        rank = event.rank or 0
        who = event.run, event.attempt, rank
        death = Death(event.run, name, rank, event.time, state, cause, clock.at, step)
        before = self._told.get(who)
        if before is not None and before.alert == death.alert:
            return
        if before is not None:
            text = f"rank {rank} of run {name} died of something else than was thought: {cause or state}"
            yield self._told.pop(who).alarm(over=(clock.now or event.time, text))
        worker = self._worker(death)
        if worker or state == "lost" or cause.startswith(("SIG", "exit", OUT_OF_MEMORY)):
            yield self._tell(who, death, worker)
        else:
            self._waiting[who] = death

    def ended(self, run: str, attempt: int, name: str, *, state: str, time: float, clock: Clock) -> Iterator[Finding]:
        """A run shows that it has ended, which may not have been told as an event: no daemon saw it."""
        known = any(who[:2] == (run, attempt) for deaths in (self._told, self._waiting) for who in deaths)
        if state in {"failed", "lost"} and not known and (not clock.now or clock.now - time <= OLD):
            yield self._tell((run, attempt, 0), Death(run, name, None, time, state, "", clock.at))

    def worker_died(self, event: Event) -> None:
        """A data loader's worker of a rank has, which is often seen after the rank's own end."""
        rank, pid, cause = event.rank or 0, event.fields.get("pid"), str(event.fields.get("cause", ""))
        how = f"was {cause}" if cause.startswith("killed") else f"ended by itself: {cause}"
        self._workers.pop((event.run, rank), None)
        self._workers[event.run, rank] = event.time, f"The likely cause: its data loader worker {pid} {how}."
        if len(self._workers) > RANKS:
            del self._workers[next(iter(self._workers))]

    def evaluate(self, clock: Clock) -> Iterator[Finding]:
        """What has waited for long enough, and what is long ago."""
        for kept in self._adopted:
            death = self._told.get((kept.run, -1, int(kept.labels.get("rank", 0))))
            if death is not None:
                yield death.alarm()
        self._adopted.clear()
        for who, death in list(self._waiting.items()):
            worker = self._worker(death)
            if worker or clock.at - death.seen >= WAIT:
                del self._waiting[who]
                yield self._tell(who, death, worker)
        while self._told:
            who, death = next(iter(self._told.items()))
            if clock.at - death.seen <= OLD and len(self._told) <= RANKS:
                break
            del self._told[who]
            yield death.alarm(over=(clock.now, f"that was {OLD / 60:g} min ago"))

    def restarted(self, run: str, attempt: int, now: float) -> Iterator[Finding]:
        """Another attempt of a run begins: what the one before died of is over."""
        yield from self._over(lambda who, _: who[0] == run and who[1] < attempt, now, "was restarted")

    def begun(self, run: str, name: str, now: float) -> Iterator[Finding]:
        """A run begins: older deaths of others of its *name*, which have the same labels, are over, so that its own is news."""
        yield from self._over(
            lambda who, death: death.name == name and who[0] != run and death.time <= now, now, "was begun anew"
        )

    def _over(self, which: Callable[[Who, Death], bool], now: float, why: str) -> Iterator[Finding]:
        """Of what has waited it is told first."""
        for who in [who for who, death in self._waiting.items() if which(who, death)]:
            worker = self._worker(self._waiting[who])
            yield self._tell(who, self._waiting.pop(who), worker)
        for who in [who for who, death in self._told.items() if which(who, death)]:
            death = self._told.pop(who)
            yield death.alarm(over=(now, f"run {death.name} {why}"))

    def revived(self, rank: Rank, now: float) -> Iterator[Finding]:
        """A rank that was thought lost speaks again."""
        who = rank.run.id, rank.run.attempt, rank.number
        self._waiting.pop(who, None)
        death = self._told.pop(who, None) or self._told.pop((rank.run.id, -1, rank.number), None)
        if death is not None:
            yield death.alarm(over=(now, f"rank {rank.number} of run {rank.run.name} is back"))

    def _tell(self, who: Who, death: Death, worker: str = "") -> Finding:
        self._told[who] = death
        return death.alarm(worker)

    def _worker(self, death: Death) -> str:
        time, text = self._workers.get((death.run, death.rank or 0), (0.0, ""))
        return text if abs(death.time - time) <= WORKER else ""


def _how(death: Death) -> str:
    if death.state == "lost":
        return "is lost: its process is gone or silent, and nobody saw how it ended"
    if death.cause == OUT_OF_MEMORY:
        return "was killed by the kernel for want of memory"
    if death.cause.startswith("SIG"):
        return f"was killed by {death.cause}"
    return f"died: {death.cause}" if death.cause else "died, and said no reason"


def _look(death: Death) -> str:
    if death.cause == OUT_OF_MEMORY:
        return "See how its memory grew before, and what limit its cgroup has; fewer workers and smaller batches need less."
    if death.state == "lost":
        return "See whether its machine answers, and the kernel's log there for the OOM killer."
    if death.cause.startswith("SIG"):
        return "See the kernel's log (dmesg), the GPU's Xid errors, and who may have sent the signal."
    return "The training's own output has the traceback."
