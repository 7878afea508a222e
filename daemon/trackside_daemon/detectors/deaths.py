"""Detect ranks that died, each with its cause. `ActiveAlerts` groups those of one run into one alert."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from trackside.wire import CLOSED
from trackside_daemon.detectors.run_view import RankProgress, RunClock, labels_of
from trackside_daemon.model.finding import Finding
from trackside_daemon.model.recent import Recent
from trackside_daemon.model.records import Alert, BatchIngested, Event
from trackside_daemon.model.text import number, some
from trackside_daemon.model.troubles import TROUBLES

OLD = 900.0  # age in seconds above which a death is not reported
SHOWN = 300.0  # seconds for which its alert fires, since nothing can be done to end it
WORKER = 60.0  # seconds around the death of a rank in which the death of a data loader worker is the likely cause
FINISHED = 60.0  # seconds before the death of a rank in which another rank that finished is the likely cause
ALERTS = ("TrainingProcessDied", "OomKilled")  # names of the alerts that this detector can raise

OUT_OF_MEMORY = "OOM killed"
AT_STEP = re.compile(r", at step [\d,]+( or later)?,(?= )")  # of a summary
ABORT = "SIGABRT"  # the signal that a program sends itself
# When the ranks of more runs of one user die within a minute, one alert has them all: a machine is gone, or somebody
# invents runs.
MANY = 3
MANY_SECONDS = 60.0
NAMED = 5  # the most names of runs in that alert
RUNS = 256  # the most runs in its evidence

RANKS = 8192  # deaths, and deaths of workers, that are remembered

RankKey = tuple[str, int, int]
"""Run id, attempt and rank."""


class Death(NamedTuple):
    """The end of a rank of a run.

    Attributes:
        rank: None if only the end of its run was reported.
        state: ``failed`` or ``lost``.
        cause: One word or a few.
        seen: When it was reported, in watched seconds.
        step: The last pushed step; None if unknown.
        user: The user of its run; empty if unknown.
        summed: The alert of many runs has it.
        attempt: The attempt of its run; None if unknown.
    """

    run: str
    name: str
    rank: int | None
    time: float
    state: str
    cause: str
    seen: float
    step: int | None = None
    user: str = ""
    summed: bool = False
    attempt: int | None = None

    @property
    def alert(self) -> str:
        """The name of its alert."""
        return "OomKilled" if self.cause == OUT_OF_MEMORY else "TrainingProcessDied"

    @property
    def by_exception(self) -> bool:
        """True if the training's own code ended it, so that something else may be the cause."""
        return self.state == "failed" and not self.cause.startswith(("SIG", "exit", OUT_OF_MEMORY))

    @property
    def call(self) -> tuple[str, str]:
        """Number and group of the collective in which a peer's end was noticed, and the rank's call in it; else empty."""
        place, _, call = self.cause.partition(CLOSED)[2].partition(": ")
        return place, call

    def alarm(self, reason: str = "", over: tuple[float, str] | None = None) -> Finding:
        """Return the finding of this death, or of its end.

        Args:
            reason: The likely cause, as a sentence: a data loader worker that died, or a rank that finished.
            over: Time and reason of the end; None while it fires.
        """
        labels = labels_of(self.name, self.rank)
        if over is not None:
            return Finding(self.alert, "critical", labels, *over, over=True, run=self.run)
        who = f"run {self.name}" if self.rank is None else f"rank {self.rank} of run {self.name}"
        text = f"{reason} {TROUBLES[self.alert].advice(_case(self))}".strip()
        # A process that had no chance to send its last pushes; they may be in its spool.
        is_sudden = self.state == "lost" or self.cause == OUT_OF_MEMORY or self.cause.startswith("SIG")
        at = "" if self.step is None else f", at step {number(self.step)}{' or later' * is_sudden},"
        summary = f"{who}{at} {how_ended(self.state, self.cause)}"
        finding = Finding(self.alert, "critical", labels, self.time, summary, text, run=self.run)
        return finding._replace(evidence={"cause": self.cause or self.state}, attempt=self.attempt)


class Deaths:
    """`TrainingProcessDied` and `OomKilled` of all runs, from the events of their ends."""

    def __init__(self) -> None:
        self._reported: dict[RankKey, Death] = {}
        self._restored: list[Alert] = []
        self._grown: set[str] = set()  # users whose alert of many runs has more of them since the last tick
        self._workers = Recent[tuple[str, int], tuple[float, str]](RANKS)
        self._finished = Recent[tuple[str, int], tuple[float, int, int | None]](
            RANKS
        )  # time, rank and step of the first

    def restore(self, kept: Alert, clock: RunClock) -> None:
        """Continue an alert of the previous daemon. Its attempt is unknown, but earlier than any attempt from now on."""
        if kept.run:
            rank = int(kept.labels["rank"]) if "rank" in kept.labels else None
            cause = OUT_OF_MEMORY if kept.alert == "OomKilled" else str(kept.evidence.get("cause", ""))
            name = kept.labels.get("run", kept.run)
            self._reported[kept.run, -1, rank or 0] = Death(
                kept.run, name, rank, kept.started, "failed", cause, clock.at
            )
            self._restored.append(kept)

    def died(
        self, event: Event, name: str, clock: RunClock, step: int | None = None, *, user: str = ""
    ) -> Iterator[Finding]:
        """Yield findings for a rank of a user that ended, if it failed or was lost; *step* is its last one, if known."""
        state, cause = str(event.fields.get("state", "")), str(event.fields.get("cause", ""))
        if state == "finished":
            yield from self._finish(event, step)
        if state not in {"failed", "lost"} or (clock.now and clock.now - event.time > OLD):
            return
        rank = event.rank or 0
        who = event.run, event.attempt, rank
        death = Death(event.run, name, rank, event.time, state, cause, clock.at, step, user, attempt=event.attempt)
        before = self._reported.get(who)
        if before is not None and before.alert == death.alert:
            return
        if before is not None:
            text = f"rank {rank} of run {name} died of another cause than reported before: {cause or state}"
            yield from self._end(who, clock.now or event.time, text)
        yield from self._report(who, death)
        if death.call[1]:
            yield from self._explain(who, ABORT)

    def ended(
        self, run: str, attempt: int, name: str, *, state: str, time: float, clock: RunClock, user: str = ""
    ) -> Iterator[Finding]:
        """Yield a finding for a run that ended without an event, because no daemon observed it."""
        known = any(who[:2] == (run, attempt) for who in self._reported)
        if state in {"failed", "lost"} and not known and (not clock.now or clock.now - time <= OLD):
            death = Death(run, name, None, time, state, "", clock.at, user=user, attempt=attempt)
            yield from self._report((run, attempt, 0), death)

    def pushed(self, record: BatchIngested) -> Iterator[Finding]:
        """Yield again the finding of a death whose rank had made more steps than were known: its last rows are stored now."""
        session = record.session
        who = session.run, session.attempt, session.rank
        if (death := self._reported.get(who)) is None:
            return
        steps = [max(columns.steps) for columns in record.columns if columns.steps and not columns.aside]
        if (step := max(steps, default=-1)) > (-1 if death.step is None else death.step):
            self._reported[who] = death = death._replace(step=step)
            if not death.summed:
                yield death.alarm(self._reason(death))

    def worker_died(self, event: Event) -> Iterator[Finding]:
        """Record the death of a data loader worker; if its rank has died of an exception, yield that finding again.

        The exit of a process is observed at once, and that of a worker at the next tick.
        """
        rank, pid, cause = event.rank or 0, event.fields.get("pid"), str(event.fields.get("cause", ""))
        how = f"was {cause}" if cause.startswith("killed") else f"exited: {cause}"
        self._workers[event.run, rank] = event.time, f"The likely cause: data loader worker {pid} of rank {rank} {how}."
        death = self._reported.get((event.run, event.attempt, rank))
        if death is not None and death.by_exception and not death.summed:
            yield death.alarm(self._reason(death))

    def _finish(self, event: Event, step: int | None) -> Iterator[Finding]:
        """Record that a rank has finished; yield again the findings of ranks that died of that, which may be observed before."""
        who = event.run, event.attempt
        self._finished[who] = self._finished.get(who, (event.time, event.rank or 0, step))
        yield from self._explain((event.run, event.attempt, 0))

    def _explain(self, who: RankKey, cause: str = "") -> Iterator[Finding]:
        """Yield again the findings of the deaths of an attempt, or of those of a cause, for which there is a reason now."""
        for other, death in list(self._reported.items()):
            counts = other[:2] == who[:2] and cause in {"", death.cause} and not death.summed
            if counts and (reason := self._reason(death)):
                yield death.alarm(reason)

    def evaluate(self, clock: RunClock) -> Iterator[Finding]:
        """Yield restored deaths as open, many runs together, and the ends of old alerts."""
        for kept in sorted(self._restored, key=lambda kept: kept.started):
            who = kept.run, -1, int(kept.labels.get("rank", 0))
            if who in self._reported:
                # A restart of the daemon does not prolong the alert.
                seen = clock.at - max(0.0, clock.now - kept.started)
                death = self._reported[who] = self._reported.pop(who)._replace(seen=seen)
                yield death.alarm()._replace(description=kept.description)
        self._restored.clear()
        for user in self._grown:
            deaths = {death.run: death for death in self._reported.values() if death.summed and death.user == user}
            if deaths:
                yield _many(user, list(deaths.values()))
        self._grown.clear()
        while self._reported:
            who, death = next(iter(self._reported.items()))
            if clock.at - death.seen <= SHOWN and len(self._reported) <= RANKS:
                break
            yield from self._end(who, clock.now, f"that was {SHOWN / 60:g} min ago")

    def restarted(self, run: str, attempt: int, now: float) -> Iterator[Finding]:
        """End the alerts of earlier attempts of a run, because another attempt began."""
        yield from self._over(lambda who, _: who[0] == run and who[1] < attempt, now, "was restarted")

    def begun(self, run: str, name: str, now: float) -> Iterator[Finding]:
        """End the alerts of earlier runs of the same *name*.

        They have the same labels, so the death of this run would not be a new alert.
        """
        yield from self._over(
            lambda who, death: death.name == name and who[0] != run and death.time <= now, now, "was started again"
        )

    def _over(self, which: Callable[[RankKey, Death], bool], now: float, why: str) -> Iterator[Finding]:
        """Yield the end of each death that *which* selects."""
        for who, name in [(who, death.name) for who, death in self._reported.items() if which(who, death)]:
            yield from self._end(who, now, f"run {name} {why}")

    def revived(self, rank: RankProgress, now: float) -> Iterator[Finding]:
        """End the alert of a rank that was lost and pushes again."""
        who = rank.run.id, rank.run.attempt, rank.number
        who = who if who in self._reported else (rank.run.id, -1, rank.number)
        if who in self._reported:
            yield from self._end(who, now, f"rank {rank.number} of run {rank.run.name} is back")

    def _report(self, who: RankKey, death: Death) -> Iterator[Finding]:
        alone = {
            other.run
            for other in self._reported.values()
            if other.user == death.user and not other.summed and death.seen - other.seen <= MANY_SECONDS
        }
        summed = death.alert == "TrainingProcessDied" and len(alone) >= MANY and death.run not in alone
        self._reported[who] = death._replace(summed=summed)
        if summed:
            self._grown.add(death.user)
        else:
            yield death.alarm(self._reason(death))

    def _end(self, who: RankKey, time: float, why: str) -> Iterator[Finding]:
        """Forget a death and yield the end of its alert; that of many runs ends with its last death."""
        death = self._reported.pop(who)
        if not death.summed:
            yield death.alarm(over=(time, why))
        elif not any(other.summed and other.user == death.user for other in self._reported.values()):
            yield _many(death.user, (), (time, why))

    def _reason(self, death: Death) -> str:
        """Return the likely cause of a death, as a sentence; empty if its own cause is all that is known."""
        time, text = self._workers.get((death.run, death.rank or 0), (0.0, ""))
        if abs(death.time - time) <= WORKER:
            return text
        others = self._reported.values() if death.cause == ABORT else ()
        same = [other for other in others if (other.run, other.attempt) == (death.run, death.attempt) and other.call[1]]
        calls = {other.call[1]: other for other in same}
        if len(calls) > 1 and len({other.call[0] for other in same}) == 1:
            named = " and ".join(f"rank {other.rank} called {call}" for call, other in calls.items())
            return f"The ranks' collectives differ: {named}, which Gloo cannot join."
        time, rank, step = self._finished.get(
            (death.run, -1 if death.attempt is None else death.attempt), (0.0, 0, None)
        )
        early = step is None or death.step is None or step <= death.step
        if not (early and 0 <= death.time - time <= FINISHED and (death.by_exception or death.cause == ABORT)):
            return ""
        at = "" if step is None else f" at step {number(step)}"
        return f"Rank {rank} had finished{at} before: a rank that then waits for it fails."


def _many(user: str, deaths: Sequence[Death], over: tuple[float, str] | None = None) -> Finding:
    """Return the finding of the deaths of many runs, or of its end: time and reason."""
    labels = (("user", user),) if user else ()
    if over is not None:
        return Finding("TrainingProcessDied", "critical", labels, *over, over=True)
    names = [death.name for death in deaths]
    whose = f" of {user}" if user else ""
    summary = f"more than {MANY} runs{whose} died or are lost within a minute, also {some(names, NAMED)}"
    text = TROUBLES["TrainingProcessDied"].advice("many")
    found = Finding("TrainingProcessDied", "critical", labels, deaths[0].time, summary, text)
    return found._replace(evidence={"runs": [death.run for death in deaths[:RUNS]]})


def how_ended(state: str, cause: str) -> str:
    """Return how a rank or a run ended, as the end of a sentence."""
    if state == "lost":
        return "is lost: its process is gone or silent, and how it ended is unknown"
    if state in {"finished", "stopped"}:
        return "finished" if state == "finished" else f"was stopped{f' by {cause}' if cause else ''}"
    if cause == OUT_OF_MEMORY:
        return "was killed by the kernel because memory ran out"
    if cause == ABORT:
        return f"aborted itself ({cause})"
    if cause.startswith("SIG"):
        return f"was killed by {cause}"
    return f"died: {cause}" if cause else "died without a stated reason"


def _case(death: Death) -> str:
    """Return the case of a death that has next steps of its own."""
    if death.state == "lost":
        return "lost"
    if death.cause == ABORT:
        return "abort"
    return "signal" if death.cause.startswith("SIG") else "exception" if death.by_exception else ""
