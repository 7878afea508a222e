"""Watches every run: whether it begins, makes progress, ends or stalls. The cost of a batch does not grow with the ranks."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from trackside.roles import usable
from trackside_daemon.detectors.base import Past, SlowSteps
from trackside_daemon.detectors.deaths import ALERTS as DEATHS
from trackside_daemon.detectors.deaths import Deaths
from trackside_daemon.detectors.key_roles import BY_NAME, KeyRoles
from trackside_daemon.detectors.monitor_blind import PipelineBlind
from trackside_daemon.detectors.pace import PushPace, restored_pace
from trackside_daemon.detectors.run_detectors import LASTING, BestLoss, WatchedRun, slowness, waits
from trackside_daemon.detectors.run_view import RankProgress, RunClock, RunProgress
from trackside_daemon.detectors.settings import DEFAULTS, STALL_AFTER, STRAGGLER_WINDOW, DetectorThresholds
from trackside_daemon.detectors.stalled import RankSilent, Stalled
from trackside_daemon.detectors.user_alerts import UserAlerts
from trackside_daemon.model.checkpoint import Checkpoint
from trackside_daemon.model.families import training as f
from trackside_daemon.model.finding import Finding
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.recent import Recent
from trackside_daemon.model.records import ENDED, USER_ALERT, Alert, BatchIngested, Event, Record, SessionOpened
from trackside_daemon.model.session import RankRef
from trackside_daemon.model.stall import Stall
from trackside_daemon.model.text import duration

# All alerts that it reports.
ALERTS = ("RunStarted", "RunRestarted", "RunFinished", "TrainingProcessDied", "OomKilled", "UserAlert", *LASTING)

RUNS = 512  # the most attempts that are watched, and whose names are remembered; with more, the oldest are forgotten
RANKS = 8192  # the most ranks whose longest gap is restored


class RunWatch:
    """A finding source of the pipeline.

    Args:
        stall_after: Seconds of silence that are never a stall; beyond that the run's own pace decides.
        straggler_window: Least seconds between two comparisons of the ranks of a run.
        thresholds: Where findings begin.
        slow_steps: Returns the slow steps of a run and its attempt.
        readings: Returns why losses of a run and its attempt are read as objectives, by key.
        roles: The roles of keys for runs that do not state others.
        report: Returns words about the report of a run, by its id; empty if there will be none.
    """

    def __init__(
        self,
        *,
        stall_after: float = STALL_AFTER,
        straggler_window: float = STRAGGLER_WINDOW,
        thresholds: DetectorThresholds = DEFAULTS,
        slow_steps: Callable[[str, int], SlowSteps] = lambda *_: SlowSteps(),
        readings: Callable[[str, int], Mapping[str, str]] = lambda *_: {},
        roles: KeyRoles = BY_NAME,
        report: Callable[[str], str] = lambda _: "",
    ) -> None:
        self._thresholds = thresholds
        self._slow_steps, self._readings, self._roles, self._report = slow_steps, readings, roles, report
        self._floor = stall_after
        self._straggler_window = straggler_window
        self._clock = RunClock()
        self._runs: dict[RankRef, WatchedRun] = {}
        self._ranks: dict[RankRef, RankProgress] = {}
        self._names, self._users = Recent[RankRef, str](RUNS), Recent[RankRef, str](RUNS)
        self._losses = Recent[str, BestLoss](RUNS)
        self._stated = Recent[str, KeyRoles](RUNS)
        self._earlier = Recent[str, tuple[float, float, float]](RUNS)  # start, steps and start-up of attempts
        self._restored: dict[RankRef, list[Alert]] = {}
        self._paces: dict[RankRef, PushPace] = {}
        self._gaps: dict[RankRef, tuple[int, float]] = {}
        self._deaths = Deaths()
        self._user_alerts = UserAlerts()
        self._pipeline = PipelineBlind()
        self._gone: list[Batch] = []
        self._stalls: dict[RankRef, Stall] = {}

    def accept(self, batch: Batch) -> list[Finding]:
        """Return the findings that follow from a batch, and from the time that has passed by it."""
        findings: list[Finding] = []
        for record in batch.records:
            findings += self._record(record)
        if batch.subject is not None:
            findings += self._samples(batch, batch.subject)
        elif batch.source == "pipeline":
            findings += self._pipeline.evaluate(batch.samples, self._clock)
        if batch.time and self._clock.advance(batch.time):
            findings += self._evaluate()
        return findings

    def restore(self, alert: Alert, attempt: int = 0) -> None:
        """Continue an alert of a run that fired when an earlier daemon ended, until this attempt proves otherwise."""
        if alert.alert in DEATHS:
            self._deaths.restore(alert, self._clock)
        elif alert.run and alert.alert in LASTING:
            ref = RankRef(alert.run, attempt)
            self._restored.setdefault(ref, []).append(alert)
            self._stalls[ref] = _restored_stall(ref, self._restored[ref])

    def restore_rank(self, past: Past, _: Sequence[Alert]) -> None:
        """Restore the pace of a run, from the first of its ranks, each rank's longest gap, and the roles of keys."""
        self._state_roles(past.identity.run, past.roles)
        run = RankRef(past.identity.run, past.identity.attempt)
        if run not in self._paces and len(past.pushes) > 1 and len(self._paces) < RUNS:
            self._paces[run] = restored_pace(self._floor, past.pushes)
        longest = max((after - before for (before, _), (after, _) in pairwise(past.pushes)), default=0.0)
        ref = run._replace(rank=past.identity.rank)
        if (rank := self._ranks.get(ref)) is not None:
            rank.pushes += len(past.pushes)
            rank.longest.add(longest, self._clock.at)
        elif len(self._gaps) < RANKS:
            self._gaps[ref] = len(past.pushes), longest

    def changed_batches(self) -> list[Batch]:
        """Return by how much ranks are slower than the others of their runs, where that was measured anew."""
        gone, self._gone = self._gone, []
        return gone + [batch for watched in self._runs.values() for batch in watched.straggler.shown()]

    def changed_stalls(self) -> list[Stall]:
        """Return the stalls that began, changed or ended since the last call."""
        changed = list(self._stalls.values())
        self._stalls.clear()
        return changed

    def _evaluate(self) -> Iterator[Finding]:
        """Yield what time alone changes."""
        yield from self._deaths.evaluate(self._clock)
        for ref, watched in self._runs.items():
            if not watched.run.state:
                for detector in watched.detectors:
                    yield from detector.evaluate(self._clock)
                self._publish_stall(ref, watched)

    def _samples(self, batch: Batch, ref: RankRef) -> Iterator[Finding]:
        """Apply samples of a run or of one rank."""
        if ref.rank is None:
            yield from self._marks(batch, ref)
            return
        run_ref = ref._replace(rank=None)
        rank = self._ranks.get(ref)
        if rank is None:
            if not batch.samples:  # it only removes the series of a forgotten rank
                return
            rank = self._watch_rank(ref, run_ref, batch.samples[0].labels[0])
        ended = rank.ended
        rank.run.accept(rank, batch.samples, self._clock.at)
        self._publish_stall(run_ref, self._runs[run_ref])
        if ended and not rank.ended:
            rank.run.died = None
            yield from self._deaths.revived(rank, self._clock.now)

    def _watch_rank(self, ref: RankRef, run_ref: RankRef, name: str) -> RankProgress:
        watched = self._watch(run_ref)
        number = ref.rank or 0
        rank = RankProgress(watched.run, number, self._clock.at)
        watched.run.ranks[number] = rank
        self._ranks[ref] = rank
        rank.pushes, gap = self._gaps.pop(ref, (0, 0.0))
        rank.longest.add(gap, self._clock.at)
        watched.refs.add(ref)
        watched.run.name = name
        self._names[run_ref] = name
        return rank

    def _watch(self, ref: RankRef) -> WatchedRun:
        watched = self._runs.get(ref)
        if watched is None:
            run = RunProgress(ref.run, ref.attempt, self._clock.at, self._floor)
            run.pace = self._paces.pop(ref, run.pace)
            before = self._runs.get(ref._replace(attempt=ref.attempt - 1))
            run.pace.begin_like(self._earlier.get(ref.run, (0.0,))[-1] if before is None else before.run.start_up)
            watched = WatchedRun(run, self._straggler_window, self._thresholds)
            for alert in self._restored.pop(ref, ()):
                watched.restore(alert)
            self._runs[ref] = watched
            self._publish_stall(ref, watched)
            if len(self._runs) > RUNS:
                self._forget(next(iter(self._runs)))
        return watched

    def _publish_stall(self, ref: RankRef, watched: WatchedRun) -> None:
        version = watched.run.stall_version
        if version != watched.stall_version:
            watched.stall_version = version
            self._stalls[ref] = watched.run.stall()

    def _forget(self, ref: RankRef) -> list[Finding]:
        """Forget a run whose series are gone; return the ends of its alerts."""
        watched = self._runs.pop(ref, None)
        if watched is None:
            return []
        started, steps, start_up = self._earlier.pop(ref.run, (watched.run.started, 0.0, 0.0))
        self._earlier[ref.run] = started, steps + watched.run.steps, max(start_up, watched.run.start_up)
        for rank in watched.refs:
            del self._ranks[rank]
        watched.run.state = watched.run.state or "lost"
        findings = [finding for detector in watched.detectors for finding in detector.end(self._clock)]
        self._gone += watched.straggler.shown()
        if watched.stall_version:
            self._stalls[ref] = Stall(ref.run, ref.attempt)
        return findings

    def _marks(self, batch: Batch, ref: RankRef) -> Iterator[Finding]:
        """Apply a run's state."""
        if batch.complete and not batch.samples:
            yield from self._forget(ref)
            return
        state, ended_at = "", 0.0
        for metric, labels, value in batch.samples:
            if metric is f.STATE and value == 1 and labels[1] in ENDED:
                state = labels[1]
            elif metric is f.ENDED_AT and isinstance(value, (int, float)):
                ended_at = max(ended_at, value)
            elif metric is f.RUN_INFO:
                self._names[ref] = labels[0]
                self._users[ref] = labels[-1]
        if not batch.samples:
            return
        watched = self._watch(ref)
        run, before = watched.run, watched.run.state
        run.name = self._names.get(ref, run.name)
        run.state = state
        if state and not before:
            yield from self._ended(watched, ref, ended_at or self._clock.now)

    def _ended(self, watched: WatchedRun, ref: RankRef, time: float) -> Iterator[Finding]:
        run = watched.run
        for detector in watched.detectors:
            yield from detector.end(self._clock)
        self._publish_stall(ref, watched)
        if run.state in {"failed", "lost"}:
            user = self._users.get(ref, "")
            yield from self._deaths.ended(
                run.id, run.attempt, run.name, state=run.state, time=time, clock=self._clock, user=user
            )
            return
        loss = self._losses.get(ref.run)
        started, steps, _ = self._earlier.get(ref.run, (run.started, 0.0, 0.0))
        texts = (
            loss.text(self._readings(run.id, run.attempt).get(loss.key, "")) if loss else "",
            waits(run, time, self._thresholds.data_wait_ratio),
            slowness(self._slow_steps(run.id, run.attempt)),
            self._report(run.id),
        )
        how = "has finished" if run.state == "finished" else "was stopped"
        started, steps, more = started or run.started, steps + run.steps, "; ".join(filter(None, texts))
        after = f" after {duration(time - started)}" if started else ""
        made = f" and {steps:,.0f} steps" if steps else ""
        text = f"run {run.name} {how}{after}{made}" + (f": {more}" if more else "")
        yield self._once("RunFinished", run.id, run.name, time, text)

    def _record(self, record: Record) -> Iterator[Finding]:
        if isinstance(record, BatchIngested):
            self._best_loss(record)
            yield from self._deaths.pushed(record)
        elif isinstance(record, Event):
            yield from self._event(record)
        elif isinstance(record, Checkpoint):
            watched = self._runs.get(RankRef(record.run, record.attempt))
            if watched is not None:
                watched.checkpoints.audited(record, self._clock.at)
        elif isinstance(record, SessionOpened):
            ref = RankRef(record.session.run, record.session.attempt)
            self._names[ref] = record.session.name
            if record.owner is not None:
                self._users[ref] = record.owner.user
            if record.hello.about is not None:
                self._state_roles(record.session.run, usable(record.hello.about.roles))

    def _state_roles(self, run: str, stated: Mapping[str, str]) -> None:
        if stated:
            self._stated[run] = self._roles.of_run(stated)

    def _best_loss(self, record: BatchIngested) -> None:
        """Apply the hashes of a rank's model, and the losses of the lowest rank of a run."""
        session = record.session
        ref = RankRef(session.run, session.attempt)
        if session.late or ref not in self._runs:
            return
        self._runs[ref].replicas.accept(session.rank, record.hashes)
        if not record.columns:
            return
        best = self._losses.get(ref.run)
        if best is None or session.rank < best.rank:
            best = self._losses[ref.run] = BestLoss(session.rank, self._stated.get(ref.run, self._roles))
        if session.rank == best.rank:
            for columns in record.columns:
                if not best.accept(columns):
                    self._runs[ref].replicas.loss_is_lost()

    def _event(self, event: Event) -> Iterator[Finding]:
        ref = RankRef(event.run, event.attempt)
        name = self._names.get(ref, event.run)
        watched = self._runs.get(ref)
        if event.kind == "rank_ended":
            if watched is not None and event.fields.get("state") in {"failed", "lost"}:
                watched.run.died = self._clock.at
            rank = None if watched is None else watched.run.ranks.get(event.rank or 0)
            step, user = None if rank is None else rank.step, self._users.get(ref, "")
            yield from self._deaths.died(event, name, self._clock, step, user=user)
        elif event.kind == "dataloader_died":
            yield from self._deaths.worker_died(event)
        elif event.kind == USER_ALERT:
            yield from self._user_alerts.evaluate(event, self._last_name(event.run), self._clock)
        elif event.kind == "checkpoint" and watched is not None:
            watched.checkpoints.saved(event, self._clock.at)
        elif event.kind == "gap" and watched is not None:
            watched.blind.gap(int(event.fields.get("batches", 1)), self._clock.at)
        elif event.kind == "run_started" and event.rank is None:
            yield self._once("RunStarted", event.run, name, event.time, f"run {name} has begun")
            yield from self._deaths.begun(event.run, name, event.time)
        elif event.kind == "run_restarted" and event.rank is None:
            text = f"run {name} was restarted: attempt {event.attempt} begins"
            yield self._once("RunRestarted", event.run, name, event.time, text)
            yield from self._end_restored(event)
            yield from self._deaths.restarted(event.run, event.attempt, event.time)

    def _end_restored(self, event: Event) -> Iterator[Finding]:
        """End the restored alerts of earlier attempts that never came back, since the next attempt begins."""
        for ref in [ref for ref in self._restored if ref.run == event.run and ref.attempt < event.attempt]:
            self._stalls[ref] = Stall(ref.run, ref.attempt)
            for kept in self._restored.pop(ref):
                yield kept.as_finding(event.time)._replace(over=True)

    def _once(self, alert: str, run: str, name: str, time: float, text: str) -> Finding:
        return Finding(alert, "info", (("run", name),), time, text, once=True, run=run)

    def _last_name(self, run: str) -> str:
        """Return the name of a run's last attempt, by the run's id."""
        return max(((ref.attempt, name) for ref, name in self._names.items() if ref.run == run), default=(0, run))[1]


def _restored_stall(ref: RankRef, alerts: Iterable[Alert]) -> Stall:
    """Return the stall that alerts of an earlier daemon describe, whenever the ranks pushed last."""
    stalled = any(alert.alert == Stalled.alert for alert in alerts)
    silent = frozenset(int(alert.labels.get("rank", 0)) for alert in alerts if alert.alert == RankSilent.alert)
    return Stall(ref.run, ref.attempt, stalled=stalled, restored=True, silent=silent)
