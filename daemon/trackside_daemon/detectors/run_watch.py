"""Follows every run: that it began, goes on, ends or falls silent. Costs a batch nothing that grows with the ranks."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from trackside_daemon.detectors.best_loss import LossSeen
from trackside_daemon.detectors.clock import Clock
from trackside_daemon.detectors.deaths import ALERTS as DEATHS
from trackside_daemon.detectors.deaths import Deaths
from trackside_daemon.detectors.monitor_blind import PipelineBlind
from trackside_daemon.detectors.pace import recalled
from trackside_daemon.detectors.run_parts import Followed, last_words
from trackside_daemon.detectors.run_rank import Rank
from trackside_daemon.detectors.run_view import Run
from trackside_daemon.detectors.settings import DetectorThresholds
from trackside_daemon.detectors.stalled import FLOOR, stood
from trackside_daemon.detectors.straggler import SECONDS
from trackside_daemon.detectors.user_alerts import UserAlerts
from trackside_daemon.model.finding import Finding
from trackside_daemon.model.records import ENDED, USER_ALERT, BatchIngested, Event, SessionOpened

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trackside_daemon.detectors.pace import Pace
    from trackside_daemon.detectors.recalled_samples import Past
    from trackside_daemon.model.finding import Stands
    from trackside_daemon.model.metric import Batch
    from trackside_daemon.model.records import Alert, Record

FOLLOWED = (
    "TrainingStalled",
    "RankSilent",
    "StragglerRank",
    "DataLoaderBottleneck",
    "CheckpointOverdue",
    "MonitorBlind",
)
"""What lasts until an attempt goes on, or ends."""

ALERTS = ("RunStarted", "RunRestarted", "RunFinished", "TrainingProcessDied", "OomKilled", "UserAlert", *FOLLOWED)
"""All that can be found, by name."""

RUNS = 512
"""Attempts that are followed at once, and whose names are known; of more the oldest are forgotten."""

SESSIONS = 8192
"""The same for client sessions."""


class RunWatch:
    """A watcher of the pipeline.

    Args:
        stall_after: Seconds of silence that are never a stall; beyond that a run's own pace decides.
        straggler_window: Seconds in which the ranks of a run are compared once.
        thresholds: Where what is found begins to be wrong.
    """

    def __init__(
        self,
        *,
        stall_after: float = FLOOR,
        straggler_window: float = SECONDS,
        thresholds: DetectorThresholds = DetectorThresholds(),  # noqa: B008  it is frozen
    ) -> None:
        self._thresholds = thresholds
        self._floor = stall_after
        self._straggler_window = straggler_window
        self._clock = Clock()
        self._runs: dict[tuple[str, int], Followed] = {}
        self._ranks: dict[str, Rank] = {}
        self._names: dict[tuple[str, int], str] = {}
        self._sessions: dict[bytes, tuple[tuple[str, int], int]] = {}
        self._losses: dict[tuple[str, int], LossSeen] = {}
        self._adopted: dict[tuple[str, int], list[Alert]] = {}
        self._paces: dict[tuple[str, int], Pace] = {}
        self._gaps: dict[tuple[tuple[str, int], int], tuple[int, float]] = {}
        self._deaths = Deaths()
        self._user_alerts = UserAlerts()
        self._pipeline = PipelineBlind()
        self._gone: list[Batch] = []

    def accept(self, batch: Batch) -> list[Finding]:
        """What a batch tells of the runs, and what time has changed by it."""
        alarms: list[Finding] = []
        for record in batch.records:
            alarms += self._record(record)
        if batch.source.startswith("training:"):
            alarms += self._training(batch)
        elif batch.source == "pipeline":
            alarms += self._pipeline.evaluate(batch.samples, self._clock)
        if batch.time and self._clock.advance(batch.time):
            alarms += self._look()
        return alarms

    def restore(self, alert: Alert, attempt: int = 0) -> None:
        """An alert of a run fired when the daemon before this one ended: it goes on until this attempt shows otherwise."""
        if alert.alert in DEATHS:
            self._deaths.restore(alert, self._clock)
        elif alert.run and alert.alert in FOLLOWED:
            self._adopted.setdefault((alert.run, attempt), []).append(alert)

    def restore_rank(self, past: Past, _: Sequence[Alert]) -> None:
        """The pace of a run is that of the first of its ranks that is recalled; each rank has its own longest gap."""
        place = past.identity.run, past.identity.attempt
        if place not in self._paces and len(past.pushes) > 1 and len(self._paces) < RUNS:
            self._paces[place] = recalled(self._floor, past.pushes)
        if len(self._gaps) < SESSIONS:
            longest = max((after - before for (before, _), (after, _) in pairwise(past.pushes)), default=0.0)
            self._gaps[place, past.identity.rank] = len(past.pushes), longest

    def changed_batches(self) -> list[Batch]:
        """How far ranks are behind the others of their runs, where that was measured anew."""
        gone, self._gone = self._gone, []
        return gone + [batch for followed in self._runs.values() for batch in followed.straggler.shown()]

    def stalls(self, run: str, attempt: int) -> Stands | None:
        """Tells who of an attempt stands still; None while nobody does. Asked by any thread."""
        kept = self._adopted.get((run, attempt))  # before the other, into which it goes
        followed = self._runs.get((run, attempt))
        if followed is None:
            return None if kept is None else partial(stood, kept)
        return followed.run.stands if followed.run.stalled or followed.run.silent else None

    def _look(self) -> Iterator[Finding]:
        yield from self._deaths.evaluate(self._clock)
        for followed in self._runs.values():
            if not followed.run.state:
                for part in followed.parts:
                    yield from part.evaluate(self._clock)

    def _training(self, batch: Batch) -> Iterator[Finding]:
        rank = self._ranks.get(batch.source)
        if rank is None:
            place, number = _place(batch.source)
            if number is None:
                yield from self._marks(batch, place)
                return
            if not batch.samples:
                return
            followed = self._follow(place)
            run = followed.run
            rank = run.ranks[number] = self._ranks[batch.source] = Rank(run, number, self._clock.at)
            rank.pushes, gap = self._gaps.pop((place, number), (0, 0.0))
            rank.longest.add(gap, self._clock.at)
            followed.sources.add(batch.source)
            run.name = batch.samples[0].labels[0]
            self._name(place, run.name)
        ended = rank.ended
        rank.run.take(rank, batch.samples, self._clock.at)
        if ended and not rank.ended:
            rank.run.died = None
            yield from self._deaths.revived(rank, self._clock.now)

    def _follow(self, place: tuple[str, int]) -> Followed:
        followed = self._runs.get(place)
        if followed is None:
            run = Run(*place, self._clock.at, self._floor)
            run.pace = self._paces.pop(place, run.pace)
            followed = Followed(run, self._floor, self._straggler_window, self._thresholds)
            for alert in self._adopted.get(place, ()):
                followed.restore(alert)
            self._runs[place] = followed
            self._adopted.pop(place, None)
            if len(self._runs) > RUNS:
                self._forget(next(iter(self._runs)))
        return followed

    def _forget(self, place: tuple[str, int]) -> list[Finding]:
        """A run is gone from the page."""
        followed = self._runs.pop(place, None)
        self._losses.pop(place, None)
        if followed is None:
            return []
        for source in followed.sources:
            del self._ranks[source]
        followed.run.state = followed.run.state or "lost"
        alarms = [alarm for part in followed.parts for alarm in part.end(self._clock)]
        self._gone += followed.straggler.shown()
        return alarms

    def _marks(self, batch: Batch, place: tuple[str, int]) -> Iterator[Finding]:
        """A run's state, which is empty for us while it lives."""
        if batch.complete and not batch.samples:
            yield from self._forget(place)
            return
        state, ended_at = "", 0.0
        for metric, labels, value in batch.samples:
            if metric.name == "trackside_training_state" and value == 1 and labels[1] in ENDED:
                state = labels[1]
            elif metric.name == "trackside_training_end_timestamp_seconds" and isinstance(value, (int, float)):
                ended_at = max(ended_at, value)
            elif metric.name == "trackside_training_run_info":
                self._name(place, labels[0])
        if not batch.samples:
            return
        followed = self._follow(place)
        run, before = followed.run, followed.run.state
        run.name, run.state = self._names.get(place, run.name), state
        if state and not before:
            yield from self._ended(followed, ended_at or self._clock.now)

    def _ended(self, followed: Followed, time: float) -> Iterator[Finding]:
        run = followed.run
        for part in followed.parts:
            yield from part.end(self._clock)
        if run.state in {"failed", "lost"}:
            yield from self._deaths.ended(run.id, run.attempt, run.name, state=run.state, time=time, clock=self._clock)
            return
        loss = self._losses.get((run.id, run.attempt))
        text = last_words(run, time, loss.text() if loss else "")
        yield self._once("RunFinished", run.id, run.name, time, text)

    def _record(self, record: Record) -> Iterator[Finding]:
        if isinstance(record, BatchIngested):
            self._losses_of(record)
        elif isinstance(record, Event):
            yield from self._event(record)
        elif isinstance(record, SessionOpened):
            self._open(record)

    def _open(self, opened: SessionOpened) -> None:
        place = opened.hello.identity.run, opened.attempt
        self._name(place, opened.name)
        if opened.hello.late:
            return
        self._sessions[opened.session] = place, opened.hello.identity.rank
        if len(self._sessions) > SESSIONS:
            del self._sessions[next(iter(self._sessions))]

    def _losses_of(self, taken: BatchIngested) -> None:
        """Follow the loss of the lowest rank of each run."""
        place, rank = self._sessions.get(taken.session, (None, 0))
        if place is None or place not in self._runs or not taken.blocks:
            return
        seen = self._losses.get(place)
        if seen is None or rank < seen.rank:
            seen = self._losses[place] = LossSeen(rank)
        if rank == seen.rank:
            for block in taken.blocks:
                seen.accept(block)

    def _event(self, event: Event) -> Iterator[Finding]:
        place = event.run, event.attempt
        name = self._names.get(place, event.run)
        followed = self._runs.get(place)
        if event.kind == "rank_ended":
            if followed is not None and event.fields.get("state") in {"failed", "lost"}:
                followed.run.died = self._clock.at
            rank = None if followed is None else followed.run.ranks.get(event.rank or 0)
            yield from self._deaths.died(event, name, self._clock, None if rank is None else rank.step)
        elif event.kind == "dataloader_died":
            self._deaths.worker_died(event)
        elif event.kind == USER_ALERT:
            yield from self._user_alerts.evaluate(event, self._name_of(event.run), self._clock)
        elif event.kind == "checkpoint" and followed is not None:
            followed.checkpoints.saved(event, self._clock.at)
        elif event.kind == "gap" and followed is not None:
            followed.blind.gap(int(event.fields.get("batches", 1)), self._clock.at)
        elif event.kind == "run_started" and event.rank is None:
            yield self._once("RunStarted", event.run, name, event.time, f"run {name} has begun")
            yield from self._deaths.begun(event.run, name, event.time)
        elif event.kind == "run_restarted" and event.rank is None:
            text = f"run {name} was restarted: attempt {event.attempt} begins"
            yield self._once("RunRestarted", event.run, name, event.time, text)
            yield from self._give_up(event)
            yield from self._deaths.restarted(event.run, event.attempt, event.time)

    def _give_up(self, event: Event) -> Iterator[Finding]:
        """What fired of an attempt before, which is not here, is over with the next."""
        for place in [one for one in self._adopted if one[0] == event.run and one[1] < event.attempt]:
            run = Run(*place, self._clock.at, self._floor)
            for kept in self._adopted.pop(place):
                yield run.again(kept, event.time)._replace(over=True)

    def _once(self, alert: str, run: str, name: str, time: float, text: str) -> Finding:
        return Finding(alert, "info", (("run", name),), time, text, once=True, run=run)

    def _name(self, place: tuple[str, int], name: str) -> None:
        self._names[place] = name
        if len(self._names) > RUNS:
            del self._names[next(iter(self._names))]

    def _name_of(self, run: str) -> str:
        """Of the last attempt that was heard of."""
        return next((name for place, name in reversed(self._names.items()) if place[0] == run), run)


def _place(source: str) -> tuple[tuple[str, int], int | None]:
    """The run's id and attempt of a source of the training, and the rank; None for the run's marks."""
    rest, rank = source.removeprefix("training:"), None
    before, _, last = rest.rpartition(":")
    if last.isdigit():
        rest, rank = before, int(last)
    run, _, attempt = rest.rpartition(".")
    return (run, int(attempt)), rank
