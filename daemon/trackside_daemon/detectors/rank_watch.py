"""Watches each rank: gives its detectors the pushed samples, and turns their detections into findings."""

import logging
from collections.abc import Iterable, Iterator, Mapping

from trackside.roles import usable
from trackside.totals.phases import PAUSES
from trackside.wire import DistributionFrame, Identity
from trackside_daemon.detectors.base import Column, Firing, Found, Past, SlowSteps
from trackside_daemon.detectors.key_roles import BY_NAME, KeyRoles
from trackside_daemon.detectors.layers import LayerDetectors, by_layer
from trackside_daemon.detectors.rank_detectors import RankDetectors
from trackside_daemon.detectors.settings import DEFAULTS, DetectorThresholds
from trackside_daemon.detectors.step_durations import DURATION, LOST, StepDurations
from trackside_daemon.model.columns import Columns
from trackside_daemon.model.families.training import STATE
from trackside_daemon.model.finding import Finding, Severity
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.recent import Recent
from trackside_daemon.model.records import (
    ENDED,
    OF_BATCHES,
    STEP,
    Alert,
    BatchIngested,
    Event,
    Record,
    RunState,
    SessionOpened,
)
from trackside_daemon.model.troubles import TROUBLES

RUNS = 512  # the most runs whose attempts are remembered
RANKS = 2048  # the most ranks at once; one needs some 50 KiB
SPOOLS = 256  # the most spools of processes that have ended that are watched at once
SPOOL_ENDS = "the run has ended"

# Keys that the text of a detection names well enough.
PLAIN = frozenset({"loss", "grad_norm", "learning_rate", "lr", "step_duration_seconds", "process_resident_bytes"})

log = logging.getLogger("trackside")


class _WatchedRank:
    """The detectors of one rank of one attempt, and the state of their alerts."""

    def __init__(
        self,
        identity: Identity,
        name: str,
        attempt: int,
        time: float,
        thresholds: DetectorThresholds,
        *,
        roles: KeyRoles,
    ) -> None:
        self._thresholds = thresholds
        self._roles = roles
        self.readings: dict[str, str] = {}
        self.logged = ""
        self.run = identity.run
        self.attempt = attempt
        self.number = identity.rank
        self.name = name
        self._where = f"{name}, rank {identity.rank}" if identity.world > 1 else name
        self._time = time
        self._session = b""
        self._shift = 0
        self._moved = 0.0
        self._late: dict[tuple[str, str], Finding] = {}
        self.has_ended = False
        self.is_gone = False  # it cannot come back without another session
        self.is_spooled = False
        self.slow = SlowSteps()
        self.total_steps: int | None = None
        self._restart()

    def _restart(self) -> None:
        """Let the detectors learn anew."""
        self._detectors = RankDetectors(self._thresholds, lost=LOST, roles=self._roles)
        self._detectors.context.slow, self._detectors.readings = self.slow, self.readings
        self._detectors.context.total_steps = self.total_steps
        self._layers = LayerDetectors()
        self._durations = StepDurations()
        self._firing = Firing()
        self._pushes_durations = False
        self._paused_in = ""
        self._late.clear()

    def join(self) -> None:
        """Note that another process continues the rank: the time between the two is no step duration."""
        self._durations = StepDurations()

    def expect(self, steps: int | None) -> None:
        """Note the steps that the run is to make, if it states them."""
        if steps is None:
            return
        self.total_steps = self._detectors.context.total_steps = steps

    def pause(self, phase: str, seconds: float) -> None:
        """Note seconds of evaluation and checkpoints, such as *phase*, during the steps that have ended now."""
        self._paused_in = phase
        self._durations.paused(seconds)

    def follow_clock(self, session: bytes, shift: int) -> None:
        """Note the *shift* of the next rows, in nanoseconds from the session's monotonic clock to Unix time.

        The detectors get the times of a session by its first shift: if the clock is set, no step and no alert lasts longer.
        """
        if session != self._session:
            self._session, self._shift = session, shift
        self._moved = (shift - self._shift) / 1e9

    def accept(self, pushed: Columns, *, late: bool) -> Iterator[Finding]:
        """Yield the findings in pushed rows; *late* ones wait for rows in time, and are yielded if they still fire."""
        self.has_ended = False
        times = [(time + self._shift) / 1e9 for time in pushed.times]
        self._time = times[-1] + self._moved
        columns = {
            key: Column(pushed.steps, times, pushed.column(index))
            for index, key in enumerate(pushed.keys)
            if self._roles.of(key)
        }
        self._pushes_durations = self._pushes_durations or DURATION in columns
        self._detectors.context.phase = self._paused_in if self._pushes_durations else ""
        self._detectors.context.derived = not self._pushes_durations
        self._paused_in = ""
        yield from self._findings(columns, late=late, aside=pushed.aside)
        if not pushed.aside:  # else the steps are epochs, say
            ended = self._durations.add(pushed.steps, times)
            if ended.steps and not self._pushes_durations:
                yield from self._findings({DURATION: ended}, late=late)
        if not late and self._late:
            yield from self._late.values()
            self._late.clear()

    def accept_layers(self, frame: DistributionFrame, *, late: bool) -> Iterator[Finding]:
        """Yield the findings in the distributions of layers; see `accept` for *late*."""
        self.has_ended = False
        for found in self._layers.evaluate(frame.kind, frame.step, by_layer(frame)):
            yield from self._apply(found, (frame.time + self._shift) / 1e9, late=late)

    def restore(self, past: Past) -> set[tuple[str, str]]:
        """Learn from samples of before this daemon; return alert and key of what fires by them."""
        self.expect(past.total_steps)
        for columns in past.columns:
            watched = {key: column for key, column in columns.items() if self._roles.of(key)}
            self._pushes_durations = self._pushes_durations or DURATION in watched
            self._learn(watched)
        ended = self._durations.add([step for _, step in past.pushes], [time for time, _ in past.pushes])
        if ended.steps and not self._pushes_durations:
            self._learn({DURATION: ended})
        self._durations = StepDurations()
        for measured in past.layers:
            for key, detection in self._layers.evaluate(*measured):
                self._firing.apply(key, detection)
        return self._firing.now()

    def end(self, why: str) -> Iterator[Finding]:
        """End all alerts of the rank."""
        if self.has_ended:
            return
        for alert, key, severity in self._firing.end():
            yield self._about(key, alert, severity, self._time, why)._replace(over=True)
        self._restart()
        self.has_ended = True

    def _learn(self, columns: Mapping[str, Column]) -> None:
        for key, detection in self._detectors.evaluate(columns):
            self._firing.apply(key, detection)

    def _findings(self, columns: Mapping[str, Column], *, late: bool, aside: bool = False) -> Iterator[Finding]:
        for found in self._detectors.evaluate(columns) if columns else ():
            column, detection = columns[found.key], found.finding
            of_batch = {STEP: column.steps[detection.at]} if detection.alert in OF_BATCHES else {}
            evidence = {**of_batch, **detection.evidence}
            for name in (STEP, "doubtful_from_step") if aside else ():  # no batch or checkpoint has these steps
                evidence.pop(name, None)
            known = detection._replace(evidence=evidence)
            yield from self._apply(Found(found.key, known), column.times[detection.at], late=late)

    def _apply(self, found: Found, time: float, *, late: bool) -> Iterator[Finding]:
        detection = found.finding
        if (applied := self._firing.apply(found.key, detection)) is None:
            return
        finding = self._finding(found, applied[1], time + self._moved)
        if not late:
            yield finding
        elif not detection.over:
            self._late[detection.alert, found.key] = finding
        elif self._late.pop((detection.alert, found.key), None) is None:
            yield finding

    def _finding(self, found: Found, severity: Severity, time: float) -> Finding:
        key, detection = found
        finding = self._about(key, detection.alert, severity, time, detection.text)
        if detection.over:
            accepted = {"accepted": time} if detection.accepted else {}
            return finding._replace(over=True, evidence={"recovered": time} | accepted)
        names_key = detection.alert != "NonFinite" and key in PLAIN
        text = detection.text if names_key else f"{key}: {detection.text}"
        trouble = TROUBLES[detection.alert]
        of_answers = self._detectors.of_answers and "answers" in trouble.steps
        advice = trouble.advice("answers" if of_answers else severity)
        evidence = dict(detection.evidence)
        if "since" in evidence:
            evidence["since"] += self._moved
        return finding._replace(summary=f"{self._where}: {text}", description=advice, evidence=evidence)

    def _about(self, key: str, alert: str, severity: Severity, time: float, summary: str) -> Finding:
        labels = ("key", key), ("rank", str(self.number)), ("run", self.name)
        return Finding(alert, severity, labels, time, summary, run=self.run, late=self.is_spooled)


class RankWatch:
    """A finding source of the pipeline for the samples of all ranks.

    Args:
        thresholds: Where findings begin.
        roles: The roles of keys for runs that do not state others.
    """

    def __init__(self, thresholds: DetectorThresholds = DEFAULTS, roles: KeyRoles = BY_NAME) -> None:
        self._thresholds = thresholds
        self._roles = roles
        self._restored: list[Finding] = []
        self._ranks: dict[tuple[str, int], _WatchedRank] = {}
        self._full = False
        self._attempts = Recent[str, int](RUNS)
        """The attempt of each run whose session was opened last; those before it have no ranks any more."""
        self._held: dict[tuple[str, int], list[Record]] = {}
        """Records of ranks that are not restored yet."""
        self._spooled: dict[bytes, _WatchedRank] = {}
        """Ranks of processes that have ended, by the session that their spools have."""

    def accept(self, batch: Batch) -> list[Finding]:
        """Return the findings in the records of a batch."""
        findings, self._restored = self._restored, []
        for record in batch.records:
            if not self._held or not self._hold(record):
                findings += self._findings(record)
        if self._spooled and batch.subject is not None and batch.subject.rank is None:
            marks = batch.samples
            if any(metric is STATE and value == 1 and labels[1] in ENDED for metric, labels, value in marks):
                findings += self._spools_end(batch.subject.run, batch.subject.attempt)
        return findings

    def expect(self, ranks: Iterable[Identity]) -> None:
        """Hold the records of these ranks until `restore_rank`; accept what was held of all others."""
        held, self._held = self._held, {(rank.run, rank.rank): [] for rank in ranks}
        for records in held.values():
            self._release(records)

    def slow_steps(self, run: str, attempt: int) -> SlowSteps:
        """Return the slow steps of the rank of an attempt that lost most by them."""
        ranks = (rank.slow for rank in self._ranks.values() if (rank.run, rank.attempt) == (run, attempt))
        return max(ranks, key=lambda slow: slow.seconds, default=SlowSteps())

    def readings(self, run: str, attempt: int) -> dict[str, str]:
        """Return why losses of an attempt are read as objectives, by key."""
        ranks = [rank.readings for rank in self._ranks.values() if (rank.run, rank.attempt) == (run, attempt)]
        return {key: reason for readings in ranks for key, reason in readings.items()}

    def restore_rank(self, past: Past, fired: Iterable[Alert]) -> None:
        """Continue where an earlier daemon ended with a rank: learn from its last samples, without new findings.

        Args:
            past: The samples.
            fired: The alerts that fired then; those that still do are findings of the next batch.
        """
        identity = past.identity
        key = identity.run, identity.rank
        held = self._held.pop(key, [])
        if key not in self._ranks and past.pushes and self._has_room():
            self._restore(key, past, fired)
        self._release(held)

    def _restore(self, key: tuple[str, int], past: Past, fired: Iterable[Alert]) -> None:
        identity = past.identity
        rank = self._ranks[key] = self._watched(
            identity, identity.name, identity.attempt, past.pushes[-1][0], past.roles
        )
        firing = rank.restore(past)
        self._restored += [
            kept.as_finding(kept.started)
            for kept in fired
            if kept.run == identity.run and (kept.alert, kept.labels.get("key", "")) in firing
        ]

    def _hold(self, record: Record) -> bool:
        """Hold a record of ranks that are not restored yet; return whether no other rank needs it."""
        if isinstance(record, BatchIngested | SessionOpened):
            held = self._held.get((record.session.run, record.session.rank))
        elif isinstance(record, Event) and record.kind == "rank_ended":
            held = self._held.get((record.run, record.rank or 0))
        elif isinstance(record, RunState):
            # A state without an end means nothing here, and comes with the hello of each rank.
            for (run, _), records in self._held.items() if record.ended is not None else ():
                if run == record.run:
                    records.append(record)
            return False
        else:
            return False
        if held is not None:
            held.append(record)
        return held is not None

    def _release(self, records: Iterable[Record]) -> None:
        """Accept records that were held; their findings come with those of the next batch."""
        self._restored += [finding for record in records for finding in self._findings(record)]

    def _findings(self, record: Record) -> Iterable[Finding]:
        if isinstance(record, BatchIngested):
            return self._ingested(record)
        if isinstance(record, SessionOpened):
            return self._opened(record)
        if isinstance(record, RunState):
            return self._run_state(record)
        return self._rank_ended(record) if isinstance(record, Event) and record.kind == "rank_ended" else ()

    def _ingested(self, record: BatchIngested) -> Iterator[Finding]:
        session = record.session
        rank = self._spooled.get(session.id) if session.late else self._ranks.get((session.run, session.rank))
        if rank is None or rank.attempt != session.attempt:
            return
        if record.paused:
            rank.pause(next((name for name in record.phases if name in PAUSES), ""), record.paused)
        if record.columns or record.distributions:
            rank.follow_clock(session.id, record.shift)
        late = record.late and not session.late  # no other rows follow those of a spool
        for columns in record.columns:
            yield from rank.accept(columns, late=late)
        for frame in record.distributions:
            yield from rank.accept_layers(frame, late=late)
        if rank.is_gone:  # the end of a process is known at once, and may overtake its last rows
            yield from rank.end("the run ended")
        if rank.readings and not rank.logged:
            self._log_reading(rank)

    def _log_reading(self, rank: _WatchedRank) -> None:
        """Log why a loss is read as an objective, once for a run and not for each of its ranks."""
        key, reason = next(iter(rank.readings.items()))
        others = [other for other in self._ranks.values() if (other.run, other.attempt) == (rank.run, rank.attempt)]
        if not any(other.logged for other in others):
            text = "run %s: %s is read as an objective, which raises information at most: %s; state another role in roles of trackside.init or in alerts.roles"
            log.info(text, rank.name, key, reason)
        rank.logged = key

    def _opened(self, record: SessionOpened) -> Iterator[Finding]:
        """Add a session's rank; a new attempt ends the alerts of the earlier ones."""
        session = record.session
        if session.late:
            yield from self._spool_opened(record)
            return
        if self._attempts.get(session.run) != session.attempt:  # not for each of a thousand ranks
            for key, other in list(self._ranks.items()):
                if other.run == session.run and other.attempt < session.attempt:
                    yield from other.end(f"attempt {session.attempt} begins")
                    del self._ranks[key]
            self._attempts[session.run] = session.attempt
        rank = self._ranks.get((session.run, session.rank))
        if rank is None and self._has_room():
            rank = self._ranks[session.run, session.rank] = self._of_session(record)
        if rank is not None and rank.attempt == session.attempt:
            rank.expect(record.hello.total_steps)
            if not record.again:
                rank.join()
                rank.is_gone = False

    def _spool_opened(self, record: SessionOpened) -> Iterator[Finding]:
        """Watch what a process that has ended left in its spool, from its first value on."""
        if record.session.id in self._spooled:
            return
        if len(self._spooled) >= SPOOLS:
            yield from self._spooled.pop(next(iter(self._spooled))).end(SPOOL_ENDS)
        rank = self._spooled[record.session.id] = self._of_session(record)
        rank.is_spooled = True
        rank.expect(record.hello.total_steps)

    def _of_session(self, record: SessionOpened) -> _WatchedRank:
        session, about = record.session, record.hello.about
        roles = {} if about is None else usable(about.roles)
        return self._watched(record.hello.identity, session.name, session.attempt, record.time, roles)

    def _watched(
        self, identity: Identity, name: str, attempt: int, time: float, stated: Mapping[str, str]
    ) -> _WatchedRank:
        return _WatchedRank(identity, name, attempt, time, self._thresholds, roles=self._roles.of_run(stated))

    def _run_state(self, record: RunState) -> Iterator[Finding]:
        if record.ended is not None:
            yield from self._spools_end(record.run, record.attempt)
        if record.ended is not None and not record.late:
            for rank in self._ranks.values():
                if (rank.run, rank.attempt) == (record.run, record.attempt):
                    yield from rank.end(f"the run ended: {record.state}")

    def _spools_end(self, run: str, attempt: int) -> Iterator[Finding]:
        """End the alerts of the spools of a run's attempt, which has ended."""
        for id_, rank in list(self._spooled.items()):
            if (rank.run, rank.attempt) == (run, attempt):
                yield from self._spooled.pop(id_).end(SPOOL_ENDS)

    def _rank_ended(self, record: Event) -> Iterator[Finding]:
        rank = self._ranks.get((record.run, record.rank or 0))
        if rank is not None and rank.attempt == record.attempt:
            yield from rank.end("the run ended")
            rank.is_gone = record.fields.get("state") != "lost"

    def _has_room(self) -> bool:
        """Return whether another rank may be watched; if there are too many, the first that has ended is forgotten."""
        if len(self._ranks) >= RANKS:
            # A rank that has ended can come back, so its detectors stay as long as there is room.
            ended = next((key for key, rank in self._ranks.items() if rank.has_ended), None)
            if ended is None:
                if not self._full:
                    log.warning("more than %d ranks push: the detectors ignore the others", RANKS)
                self._full = True
                return False
            del self._ranks[ended]
        return True
