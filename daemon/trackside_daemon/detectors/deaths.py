"""Ranks that died: one alert a run, which names the first and counts the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.alarm import Alarm
from trackside_daemon.detectors.words import span

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trackside_daemon.detectors.clock import Clock
    from trackside_daemon.detectors.run_view import Rank
    from trackside_daemon.record import Event

OLD = 900.0
"""Seconds after which a death is no news; and a later one of the same attempt is another."""

WORKER = 60.0
"""A data loader's worker that died so shortly before or after a rank is the likely cause."""

OUT_OF_MEMORY = "OOM killed"
NAMED = 8
"""Of the ranks that died so many are in the evidence, with their causes."""

RUNS = 512


class Death(NamedTuple):
    """How a rank ended; *state* is ``failed`` or ``lost``."""

    rank: int
    time: float
    state: str
    cause: str

    def text(self) -> str:
        """For a human, after "rank 3 of run name"."""
        if self.state == "lost":
            return "is lost: its process is gone or silent, and nobody saw how it ended"
        if self.cause == OUT_OF_MEMORY:
            return "was killed by the kernel for want of memory"
        if self.cause.startswith("SIG"):
            return f"was killed by {self.cause}"
        return f"died: {self.cause}" if self.cause else "died, and said no reason"


class Group:
    """The deaths of one attempt by one alert.

    Attributes:
        deaths: By rank.
        worker: What a data loader's worker died of that was seen about then, for the text.
        changed: Something is known that was not said.
    """

    def __init__(self, alert: str, run: str) -> None:
        self.alert = alert
        self.run = run
        self.deaths: dict[int, Death] = {}
        self.worker = ""
        self.changed = True
        self._cause = "", -1

    @property
    def first(self) -> Death:
        """The one that died first, by its time."""
        return min(self.deaths.values(), key=lambda death: (death.time, death.rank))

    def say(self, name: str, *, over: float | None = None) -> Alarm:
        """All that is known by now; or that it is *over* since then."""
        self.changed = False
        first, others = self.first, len(self.deaths) - 1
        more = (
            f"; {others} more ranks died after it" if others > 1 else "; one more rank died after it" if others else ""
        )
        summary = f"rank {first.rank} of run {name} {first.text()}{more}"
        if over is not None:
            summary = f"run {name} trains again"
        text = f"{self.worker} {_look(first)}".strip()
        evidence = {"ranks": {str(one.rank): one.cause or one.state for one in list(self.deaths.values())[:NAMED]}}
        where = (("run", name),)
        return Alarm(
            self.alert,
            "critical",
            where,
            first.time if over is None else over,
            summary,
            text,
            over=over is not None,
            once=True,
            run=self.run,
            evidence=evidence,
        )


class Deaths:
    """`TrainingProcessDied` and `OomKilled`, of all runs, by the events of their ends."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, int, str], Group] = {}
        self._workers: dict[tuple[str, int], tuple[float, str]] = {}

    def died(self, event: Event, name: str, clock: Clock) -> Iterator[Alarm]:
        """A rank has ended by itself, and not well; what follows it is said with the next `look`."""
        fields = event.fields
        death = Death(event.rank or 0, event.time, str(fields.get("state", "")), str(fields.get("cause", "")))
        if death.state not in {"failed", "lost"} or (clock.now and clock.now - death.time > OLD):
            return
        alert = "OomKilled" if death.cause == OUT_OF_MEMORY else "TrainingProcessDied"
        key = (event.run, event.attempt, alert)
        group = self._groups.get(key)
        if group is not None and death.time - group.first.time > OLD:
            group = None
        known = group is not None
        if group is None:
            group = self._groups[key] = Group(alert, event.run)
            if len(self._groups) > RUNS:
                del self._groups[next(iter(self._groups))]
        group.deaths[death.rank] = death
        group.worker = group.worker or self._worker(event.run, death)
        group.changed = True
        if not known:
            yield group.say(name)

    def ended(self, run: str, attempt: int, name: str, *, state: str, time: float, clock: Clock) -> Iterator[Alarm]:
        """A run shows that it has ended, which may not have been told as an event: no daemon saw it."""
        if state in {"failed", "lost"} and not self.of(run, attempt) and (not clock.now or clock.now - time <= OLD):
            group = self._groups[run, attempt, "TrainingProcessDied"] = Group("TrainingProcessDied", run)
            group.deaths[0] = Death(0, time, state, "")
            yield group.say(name)

    def worker_died(self, event: Event) -> None:
        """A data loader's worker of a rank has, which is often seen after the rank's own end."""
        rank, pid, cause = event.rank or 0, event.fields.get("pid"), str(event.fields.get("cause", ""))
        how = f"was {cause}" if cause.startswith("killed") else f"ended by itself: {cause}"
        self._workers.pop((event.run, rank), None)
        self._workers[event.run, rank] = event.time, f"The likely cause: its data loader worker {pid} {how}."
        if len(self._workers) > RUNS:
            del self._workers[next(iter(self._workers))]
        for group in self.of(event.run, event.attempt):
            if rank in group.deaths and not group.worker:
                group.worker = self._worker(event.run, group.deaths[rank])
                group.changed = group.changed or bool(group.worker)

    def look(self, names: dict[tuple[str, int], str]) -> Iterator[Alarm]:
        """What has become known since it was looked last."""
        for (run, attempt, _), group in self._groups.items():
            if group.changed:
                yield group.say(names.get((run, attempt), run))

    def restarted(self, run: str, attempt: int, name: str, now: float) -> Iterator[Alarm]:
        """Another attempt of a run begins: what the one before died of is over."""
        for key in [key for key in self._groups if key[0] == run and key[1] < attempt]:
            yield self._groups.pop(key).say(name, over=now)

    def revived(self, rank: Rank, now: float) -> Iterator[Alarm]:
        """A rank that was thought lost speaks again."""
        run = rank.run
        for key in [key for key in self._groups if key[:2] == (run.id, run.attempt)]:
            group = self._groups[key]
            if rank.number not in group.deaths:
                continue
            if len(group.deaths) == 1:
                yield self._groups.pop(key).say(run.name, over=now)
            else:
                del group.deaths[rank.number]
                group.changed = True

    def of(self, run: str, attempt: int) -> list[Group]:
        """What is said of an attempt."""
        keys = ((run, attempt, alert) for alert in ("TrainingProcessDied", "OomKilled"))
        return [self._groups[key] for key in keys if key in self._groups]

    def _worker(self, run: str, death: Death) -> str:
        time, text = self._workers.get((run, death.rank), (-WORKER, ""))
        return text if text and abs(death.time - time) <= WORKER else ""


def _look(first: Death) -> str:
    if first.cause == OUT_OF_MEMORY:
        return "See how its memory grew before that, and what limit its cgroup has: fewer workers or smaller batches need less."
    if first.state == "lost":
        return "See whether its machine answers, and the kernel's log there for the OOM killer."
    if first.cause.startswith("SIG"):
        return "See the kernel's log (dmesg), the GPU's Xid errors, and who may have sent the signal."
    return "The training's own output has the traceback."


def finished(name: str, state: str, seconds: float, steps: float, loss: str) -> str:
    """What is said of a run that has ended well, or was stopped."""
    how = "has finished" if state == "finished" else "was stopped"
    after = f" after {span(seconds)}" if seconds > 0 else ""
    made = f" and {steps:,.0f} steps" if steps else ""
    return f"run {name} {how}{after}{made}" + (f": {loss}" if loss else "")
