"""Feeds the detectors with what ranks push, as it is taken, and says what they find."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from trackside_daemon.alarm import Alarm
from trackside_daemon.detectors.advice import NEXT
from trackside_daemon.detectors.base import Column
from trackside_daemon.detectors.durations import DURATION, LOST, StepDurations
from trackside_daemon.detectors.firing import Firing
from trackside_daemon.detectors.rank import Found, RankDetectors
from trackside_daemon.detectors.roles import role
from trackside_daemon.detectors.slow_step import PAUSES
from trackside_daemon.record import Event, Opened, Standing, Taken

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trackside.wire import Block
    from trackside_daemon.alarm import Severity
    from trackside_daemon.metric import Batch

RANKS = 2048
"""So many are followed at once; some 50 KiB each."""

PLAIN = frozenset({"loss", "grad_norm", "learning_rate", "lr", "step_duration_seconds", "process_resident_bytes"})
"""Keys that a finding's own words name well enough."""

log = logging.getLogger("trackside")


class _Rank:
    """One rank of one attempt."""

    def __init__(self, opened: Opened) -> None:
        identity = opened.hello.identity
        self.run = identity.run
        self.attempt = opened.attempt
        self.number = identity.rank
        self.name = opened.name
        self._where = f"{opened.name}, rank {identity.rank}" if identity.world > 1 else opened.name
        self._time = opened.time
        self._untold: dict[tuple[str, str], Alarm] = {}
        self.has_ended = False
        self._begin()

    def _begin(self) -> None:
        """Learn anew."""
        self._detectors = RankDetectors(lost=LOST)
        self._durations = StepDurations()
        self._firing = Firing()
        self._pushes_durations = False
        self._untold.clear()

    def join(self) -> None:
        """Another process goes on: the time between the two is no step's."""
        self._durations = StepDurations()

    def paused(self, seconds: float) -> None:
        """So long was spent in evaluation and checkpoints."""
        self._durations.paused(seconds)

    def take(self, block: Block, shift: int, *, late: bool) -> Iterator[Alarm]:
        """What is found in a block; what is *late* is told once what comes in time has been looked at, if it fires still."""
        self.has_ended = False
        steps, clock, values = block.columns()
        times = [(time + shift) / 1e9 for time in clock]
        self._time = times[-1]
        width = len(block.keys)
        columns = {key: Column(steps, times, values[place::width]) for place, key in enumerate(block.keys) if role(key)}
        self._pushes_durations = self._pushes_durations or DURATION in columns
        yield from self._told(columns, late=late)
        ended = self._durations.take(steps, times)
        if ended.steps and not self._pushes_durations:
            yield from self._told({DURATION: ended}, late=late)
        if not late and self._untold:
            yield from self._untold.values()
            self._untold.clear()

    def end(self, why: str) -> Iterator[Alarm]:
        """Nothing fires of it any more."""
        for alert, key, severity in self._firing.end():
            yield Alarm(alert, severity, self._labels(key), self._time, why, over=True, run=self.run)
        self._begin()
        self.has_ended = True

    def _told(self, columns: Mapping[str, Column], *, late: bool) -> Iterator[Alarm]:
        for found in self._detectors.take(columns) if columns else ():
            finding = found.finding
            severity = self._firing.severity(found.key, finding) if finding.over else finding.severity
            if self._firing.take(found.key, finding) is None:
                continue
            alarm = self._alarm(found, severity, columns[found.key].times[finding.at])
            if not late:
                yield alarm
            elif not finding.over:
                self._untold[finding.alert, found.key] = alarm
            elif self._untold.pop((finding.alert, found.key), None) is None:
                yield alarm

    def _alarm(self, found: Found, severity: Severity, time: float) -> Alarm:
        key, finding = found
        what = f"{key}: {finding.text}" if finding.alert == "NonFinite" or key not in PLAIN else finding.text
        summary, labels = f"{self._where}: {what}", self._labels(key)
        if finding.over:
            return Alarm(finding.alert, severity, labels, time, finding.text, over=True, run=self.run)
        return Alarm(finding.alert, severity, labels, time, summary, NEXT.get(finding.alert, ""), run=self.run)

    def _labels(self, key: str) -> tuple[tuple[str, str], ...]:
        return ("key", key), ("rank", str(self.number)), ("run", self.name)


class _Session:
    def __init__(self, rank: _Rank, paused: float) -> None:
        self.rank = rank
        self.paused = paused


class Watch:
    """Every rank that pushes to this daemon."""

    def __init__(self) -> None:
        self._ranks: dict[tuple[str, int], _Rank] = {}
        self._sessions: dict[bytes, _Session] = {}
        self._full = False

    def take(self, batch: Batch) -> list[Alarm]:
        """What is found in the messages of a batch."""
        alarms: list[Alarm] = []
        for record in batch.records:
            if isinstance(record, Taken):
                alarms += self._taken(record) if record.blocks else ()
            elif isinstance(record, Opened):
                alarms += self._opened(record)
            elif isinstance(record, Standing):
                alarms += self._stands(record)
            elif isinstance(record, Event) and record.kind == "rank_ended":
                alarms += self._ended(record)
        return alarms

    def _taken(self, record: Taken) -> Iterator[Alarm]:
        session = self._sessions.get(record.session)
        if session is None:
            return
        paused = _paused(record.phases)
        if paused > session.paused:
            session.rank.paused(paused - session.paused)
            session.paused = paused
        for block in record.blocks:
            yield from session.rank.take(block, record.shift, late=record.late)

    def _opened(self, record: Opened) -> Iterator[Alarm]:
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
            rank = self._ranks[identity.run, identity.rank] = _Rank(record)
        if rank is None or rank.attempt != record.attempt:
            return
        if record.session not in self._sessions:
            rank.join()
            self._sessions[record.session] = _Session(rank, _paused(record.hello.totals.phases))

    def _stands(self, record: Standing) -> Iterator[Alarm]:
        if record.ended is not None and not record.late:
            for rank in self._ranks.values():
                if (rank.run, rank.attempt) == (record.run, record.attempt):
                    yield from rank.end(f"the run ended: {record.state}")

    def _ended(self, record: Event) -> Iterator[Alarm]:
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


def _paused(phases: Mapping[str, float]) -> float:
    return sum(seconds for phase, seconds in phases.items() if phase in PAUSES)
