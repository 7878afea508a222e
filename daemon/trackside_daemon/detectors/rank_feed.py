"""Feeds the detectors with what ranks push, as it is taken, and says what they find."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from trackside.totals.phases import PAUSES
from trackside_daemon.detectors.advice import NEXT
from trackside_daemon.detectors.base import Column
from trackside_daemon.detectors.firing import Firing
from trackside_daemon.detectors.rank_detectors import DEFAULTS, Found, RankDetectors
from trackside_daemon.detectors.roles import role
from trackside_daemon.detectors.step_durations import DURATION, LOST, StepDurations
from trackside_daemon.model.finding import SEVERITIES, Finding
from trackside_daemon.model.records import BatchIngested, Event, RunState, SessionOpened

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from trackside.wire import Block, Identity
    from trackside_daemon.detectors.recalled_samples import Past
    from trackside_daemon.detectors.settings import DetectorThresholds
    from trackside_daemon.model.finding import Severity
    from trackside_daemon.model.metric import Batch
    from trackside_daemon.model.records import Alert

RANKS = 2048
"""So many are followed at once; some 50 KiB each."""

PLAIN = frozenset({"loss", "grad_norm", "learning_rate", "lr", "step_duration_seconds", "process_resident_bytes"})
"""Keys that a finding's own words name well enough."""

log = logging.getLogger("trackside")


class _Rank:
    """One rank of one attempt."""

    def __init__(
        self, identity: Identity, name: str, attempt: int, time: float, thresholds: DetectorThresholds
    ) -> None:
        self._thresholds = thresholds
        self.run = identity.run
        self.attempt = attempt
        self.number = identity.rank
        self.name = name
        self._where = f"{name}, rank {identity.rank}" if identity.world > 1 else name
        self._time = time
        self._untold: dict[tuple[str, str], Finding] = {}
        self.has_ended = False
        self._begin()

    def _begin(self) -> None:
        """Learn anew."""
        self._detectors = RankDetectors(self._thresholds, lost=LOST)
        self._durations = StepDurations()
        self._firing = Firing()
        self._pushes_durations = False
        self._paused_in = ""
        self._untold.clear()

    def join(self) -> None:
        """Another process goes on: the time between the two is no step's."""
        self._durations = StepDurations()

    def paused(self, phase: str, seconds: float) -> None:
        """So long was spent in evaluation and checkpoints, of which *phase* is one, during steps that have ended now."""
        self._paused_in = phase
        self._durations.paused(seconds)

    def take(self, block: Block, shift: int, *, late: bool) -> Iterator[Finding]:
        """What is found in a block; what is *late* is told once what comes in time has been looked at, if it fires still."""
        self.has_ended = False
        steps, clock, values = block.columns()
        times = [(time + shift) / 1e9 for time in clock]
        self._time = times[-1]
        width = len(block.keys)
        columns = {key: Column(steps, times, values[place::width]) for place, key in enumerate(block.keys) if role(key)}
        self._pushes_durations = self._pushes_durations or DURATION in columns
        self._detectors.context.phase = self._paused_in if self._pushes_durations else ""
        self._detectors.context.derived = not self._pushes_durations
        self._paused_in = ""
        yield from self._told(columns, late=late)
        ended = self._durations.add(steps, times)
        if ended.steps and not self._pushes_durations:
            yield from self._told({DURATION: ended}, late=late)
        if not late and self._untold:
            yield from self._untold.values()
            self._untold.clear()

    def recall(self, past: Past) -> set[tuple[str, str]]:
        """Learn from what was pushed before this daemon; which alerts of which keys fire by that."""
        for columns in past.columns:
            watched = {key: column for key, column in columns.items() if role(key)}
            self._pushes_durations = self._pushes_durations or DURATION in watched
            for key, finding in self._detectors.evaluate(watched):
                self._firing.apply(key, finding)
        ended = self._durations.add([step for _, step in past.pushes], [time for time, _ in past.pushes])
        if ended.steps and not self._pushes_durations:
            for key, finding in self._detectors.evaluate({DURATION: ended}):
                self._firing.apply(key, finding)
        self._durations = StepDurations()
        return self._firing.now()

    def again(self, kept: Alert) -> Finding:
        """An alert that fired before this daemon fires on, of this rank and with the same words."""
        labels = self._labels(kept.labels.get("key", ""))
        severity: Severity = next((one for one in SEVERITIES if one == kept.severity), "warning")
        return Finding(kept.alert, severity, labels, kept.started, kept.summary, kept.description, run=self.run)

    def end(self, why: str) -> Iterator[Finding]:
        """Nothing fires of it any more."""
        for alert, key, severity in self._firing.end():
            yield Finding(alert, severity, self._labels(key), self._time, why, over=True, run=self.run)
        self._begin()
        self.has_ended = True

    def _told(self, columns: Mapping[str, Column], *, late: bool) -> Iterator[Finding]:
        for found in self._detectors.evaluate(columns) if columns else ():
            finding = found.finding
            severity = self._firing.severity(found.key, finding) if finding.over else finding.severity
            if self._firing.apply(found.key, finding) is None:
                continue
            alarm = self._alarm(found, severity, columns[found.key].times[finding.at])
            if not late:
                yield alarm
            elif not finding.over:
                self._untold[finding.alert, found.key] = alarm
            elif self._untold.pop((finding.alert, found.key), None) is None:
                yield alarm

    def _alarm(self, found: Found, severity: Severity, time: float) -> Finding:
        key, finding = found
        what = f"{key}: {finding.text}" if finding.alert == "NonFinite" or key not in PLAIN else finding.text
        summary, labels = f"{self._where}: {what}", self._labels(key)
        if finding.over:
            return Finding(finding.alert, severity, labels, time, finding.text, over=True, run=self.run)
        return Finding(finding.alert, severity, labels, time, summary, NEXT.get(finding.alert, ""), run=self.run)

    def _labels(self, key: str) -> tuple[tuple[str, str], ...]:
        return ("key", key), ("rank", str(self.number)), ("run", self.name)


class _Session:
    """A client session: its rank, and the seconds that it has spent in pauses."""

    def __init__(self, rank: _Rank, paused: float) -> None:
        self.rank = rank
        self.paused = paused


class Watch:
    """Every rank that pushes to this daemon; *thresholds* are where what is found begins to be wrong."""

    def __init__(self, thresholds: DetectorThresholds = DEFAULTS) -> None:
        self._thresholds = thresholds
        self._again: list[Finding] = []
        self._ranks: dict[tuple[str, int], _Rank] = {}
        self._sessions: dict[bytes, _Session] = {}
        self._full = False

    def accept(self, batch: Batch) -> list[Finding]:
        """What is found in the messages of a batch."""
        alarms, self._again = self._again, []
        for record in batch.records:
            if isinstance(record, BatchIngested):
                alarms += self._taken(record) if record.blocks else ()
            elif isinstance(record, SessionOpened):
                alarms += self._opened(record)
            elif isinstance(record, RunState):
                alarms += self._stands(record)
            elif isinstance(record, Event) and record.kind == "rank_ended":
                alarms += self._ended(record)
        return alarms

    def restore_rank(self, past: Past, fired: Iterable[Alert]) -> None:
        """Go on where a daemon before this one was with a rank: what it pushed last is learnt from, and nothing told anew.

        Args:
            past: What it pushed.
            fired: What fired then; of these that which still does is said again with the next batch.
        """
        identity = past.identity
        place = identity.run, identity.rank
        if place in self._ranks or not past.pushes or not self._has_room():
            return
        rank = self._ranks[place] = self._rank(identity, identity.name, identity.attempt, past.pushes[-1][0])
        firing = rank.recall(past)
        self._again += [
            rank.again(kept)
            for kept in fired
            if kept.run == identity.run and (kept.alert, kept.labels.get("key", "")) in firing
        ]

    def _taken(self, record: BatchIngested) -> Iterator[Finding]:
        session = self._sessions.get(record.session)
        if session is None:
            return
        if record.paused > session.paused:
            phase = next((name for name in record.phases if name in PAUSES), "")
            session.rank.paused(phase, record.paused - session.paused)
            session.paused = record.paused
        for block in record.blocks:
            yield from session.rank.take(block, record.shift, late=record.late)

    def _opened(self, record: SessionOpened) -> Iterator[Finding]:
        """A session joins its rank; a new attempt begins anew, and nothing of the last fires any more."""
        identity = record.hello.identity
        if record.hello.late:
            return
        for key, other in list(self._ranks.items()):
            if other.run == identity.run and other.attempt < record.attempt:
                yield from other.end(f"attempt {record.attempt} begins")
                self._forget(key)
        rank = self._ranks.get((identity.run, identity.rank))
        if rank is None and self._has_room():
            rank = self._rank(identity, record.name, record.attempt, record.time)
            self._ranks[identity.run, identity.rank] = rank
        if rank is None or rank.attempt != record.attempt:
            return
        if record.session not in self._sessions:
            rank.join()
            self._sessions[record.session] = _Session(rank, record.hello.totals.paused)

    def _rank(self, identity: Identity, name: str, attempt: int, time: float) -> _Rank:
        return _Rank(identity, name, attempt, time, self._thresholds)

    def _stands(self, record: RunState) -> Iterator[Finding]:
        if record.ended is not None and not record.late:
            for rank in self._ranks.values():
                if (rank.run, rank.attempt) == (record.run, record.attempt):
                    yield from rank.end(f"the run ended: {record.state}")

    def _ended(self, record: Event) -> Iterator[Finding]:
        rank = self._ranks.get((record.run, record.rank or 0))
        if rank is not None and rank.attempt == record.attempt:
            yield from rank.end("the run ended")

    def _has_room(self) -> bool:
        """Ranks that have ended can come back, so they stay until there are too many; the first goes first."""
        if len(self._ranks) >= RANKS:
            ended = next((key for key, rank in self._ranks.items() if rank.has_ended), None)
            if ended is None:
                if not self._full:
                    log.warning("more than %d ranks push: the detectors do not look at the others", RANKS)
                self._full = True
                return False
            self._forget(ended)
        return True

    def _forget(self, key: tuple[str, int]) -> None:
        rank = self._ranks.pop(key)
        self._sessions = {id_: one for id_, one in self._sessions.items() if one.rank is not rank}
