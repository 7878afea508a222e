"""Judge each new attempt of a run once it has made enough steps, and report the verdict."""

import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from typing import Any, NamedTuple

from trackside.roles import usable
from trackside_daemon.checkpoints.continuity import BEFORE, WINDOW_STEPS, ResumeVerdict, TrainingQuantity, judge
from trackside_daemon.detectors.key_roles import BY_NAME, KeyRoles
from trackside_daemon.history.read import reader, series
from trackside_daemon.history.read.charts import chart
from trackside_daemon.history.read.reader import RunSeries
from trackside_daemon.history.read.series import Readable, Window
from trackside_daemon.model.finding import Finding
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.records import CONTINUITY, ENDED, BatchIngested, Event, Record, RunState, SessionOpened
from trackside_daemon.model.text import counted, cut, duration, number, shown
from trackside_daemon.model.troubles import TROUBLES

MAX_SAMPLES = 8192  # most samples of a series in a window; a window has some hundred steps
MAX_KEYS = 4096  # most keys of a rank that are searched
FIRST_VALUES = 8  # first values of the run
LAST_VALUES = 64  # last values of the earlier attempt
ROLES = ("loss", "gradient", "rate", "update")

Points = list[tuple[int, float, float]]
"""Step, Unix time and value."""
ALERT = "LossDiscontinuity"
TICK_SECONDS = 1.0
PATIENCE_SECONDS = 1800.0  # after that the steps that are there have to do
MAX_CAUSE = 200  # columns of the cause of a restart in a sentence
MAX_ATTEMPTS = 256  # most attempts that wait for their verdict

log = logging.getLogger("trackside")


class ResumeFacts(NamedTuple):
    """An attempt and the ones before it."""

    step: int  # the step after which the attempt goes on
    reached: int  # the highest step of the earlier attempts
    first_step: int  # the first step of the run
    lost_seconds: float  # how long the earlier attempt worked on the steps that are done again
    down_seconds: float  # from the last step of the earlier attempt to the first one of the new
    ended: float  # when the earlier attempt made its last step, in Unix seconds
    quantities: Mapping[str, TrainingQuantity]  # the quantities to judge

    @property
    def repeated(self) -> int:
        """The number of steps that are done again."""
        return max(0, self.reached - self.step)


def read_resume(connection: sqlite3.Connection, uid: str, attempt: int, roles: KeyRoles) -> ResumeFacts | None:
    """Return the facts about an attempt of a run; None if it or the attempts before it have no steps.

    Args:
        connection: In a transaction.
        uid: The run's id.
        attempt: The attempt's number.
        roles: The roles of keys.

    Raises:
        ValueError: A block is damaged.
    """
    by_role: dict[str, dict[int, RunSeries]] = {}
    for _, one in zip(range(MAX_KEYS), reader.series(connection, uid), strict=False):  # of the lowest rank
        role = roles.of(one.series.key)
        known = by_role.get(role, {})
        key = next((other.series.key for other in known.values()), one.series.key)
        if role in ROLES and one.attempt is not None and one.attempt <= attempt and (one.series.key == key):
            by_role.setdefault(role, {})[one.attempt] = one
    losses = by_role.get("loss", {})
    earlier = [other for other in losses if other < attempt]
    if attempt not in losses or not earlier:
        return None
    first, before = losses[min(earlier)], losses[max(earlier)]
    begins, ends = series.first(connection, *losses[attempt][3:]), series.last(connection, *before[3:], LAST_VALUES)
    first_steps, _, first_values = series.first(connection, *first[3:])
    if not (begins[0] and first_steps and ends[0]):
        return None
    step, reached = begins[0][0] - 1, max(ends[0])
    window = Window("step", step - BEFORE, max(reached, step + WINDOW_STEPS))
    quantities = {role: _quantity(connection, own, attempt, window) for role, own in by_role.items()}
    quantities["loss"] = quantities["loss"]._replace(first=list(filter(isfinite, first_values[:FIRST_VALUES])))
    quantities["duration"] = _durations(connection, losses, attempt, window)
    saved = _points(connection, before, Window("step", step - BEFORE, step))
    ended = ends[1][-1] / 1e6
    kept = saved[-1][1] if saved else series.first(connection, *before[3:])[1][0] / 1e6
    lost = ended - kept if reached > step else 0.0
    down = begins[1][0] / 1e6 - ended
    return ResumeFacts(step, reached, first_steps[0], max(0.0, lost), max(0.0, down), ended, quantities)


def _points(connection: sqlite3.Connection, one: RunSeries, window: Window) -> Points:
    points = chart(connection, one.series, one.tail, window, MAX_SAMPLES).points
    return [(int(step), then, value) for step, then, _, _, value in points if isfinite(value)]


def _quantity(
    connection: sqlite3.Connection, own: Mapping[int, RunSeries], attempt: int, window: Window
) -> TrainingQuantity:
    before: dict[int, float] = {}
    after: dict[int, float] = {}
    for other in sorted(own):
        points = _points(connection, own[other], window)
        (after if other == attempt else before).update((step, value) for step, _, value in points)
    return TrainingQuantity(before, after)


def _durations(
    connection: sqlite3.Connection, losses: Mapping[int, RunSeries], attempt: int, window: Window
) -> TrainingQuantity:
    before: dict[int, float] = {}
    after: dict[int, float] = {}
    for other in sorted(losses):
        points: Sequence[tuple[int, float, float]] = _points(connection, losses[other], window)
        for (step, then, _), (later, end, _) in pairwise(points):
            if later > step:
                (after if other == attempt else before)[later] = max(0.0, end - then) / (later - step)
    return TrainingQuantity(before, after)


@dataclass
class _Pending:
    """An attempt that waits for its verdict; *steps* counts the rows of the lowest rank that has pushed."""

    run: str
    name: str
    attempt: int
    roles: KeyRoles
    since: float
    rank: int = 1 << 31
    steps: int = 0
    over: bool = False

    def count(self, record: BatchIngested) -> None:
        rank = record.session.rank
        if rank < self.rank:
            self.rank, self.steps = rank, 0
        if rank == self.rank:
            self.steps += sum(len(columns.steps) for columns in record.columns)

    def is_due(self, now: float) -> bool:
        return self.over or self.steps >= WINDOW_STEPS or now - self.since > PATIENCE_SECONDS


class Resumes:
    """A finding source that only counts steps; a thread of its own reads the history.

    Args:
        history: The history.
        flush: Waits until the history has what was queued.
        publish: Receives batches of records.
        roles: The roles of keys for runs that do not state others.
        clock: Monotonic clock, in seconds.
        wall: Unix time, in seconds.
    """

    def __init__(
        self,
        history: Readable,
        flush: Callable[[], object],
        publish: Callable[[Batch], object],
        *,
        roles: KeyRoles = BY_NAME,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._history, self._flush, self._publish, self._roles = history, flush, publish, roles
        self._clock, self._wall = clock, wall
        self._pending: dict[str, _Pending] = {}
        self._due: deque[_Pending] = deque(maxlen=MAX_ATTEMPTS)
        self._findings: deque[Finding] = deque()
        self._failed = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trackside-resumes", daemon=True)

    def start(self) -> None:
        """Start to judge."""
        self._thread.start()

    def stop(self) -> None:
        """End; attempts that wait are judged by the next daemon."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(5.0)

    def accept(self, batch: Batch) -> Sequence[Finding]:
        """Count the steps of new attempts, and return the findings since the last call."""
        for record in batch.records:
            self._handle(record)
        return [self._findings.popleft() for _ in range(len(self._findings))] if self._findings else ()

    def _handle(self, record: Record) -> None:
        if isinstance(record, BatchIngested):
            if (one := self._pending.get(record.session.run)) is not None:
                one.count(record)
                self._settle(one)
        elif isinstance(record, SessionOpened):
            session, about = record.session, record.hello.about
            known = self._pending.get(session.run)
            if session.attempt > 0 and (known is None or known.attempt < session.attempt):
                roles = self._roles if about is None else self._roles.of_run(usable(about.roles))
                self._pending[session.run] = _Pending(session.run, session.name, session.attempt, roles, self._clock())
                while len(self._pending) > MAX_ATTEMPTS:
                    del self._pending[next(iter(self._pending))]
        elif isinstance(record, RunState) and record.state in ENDED:
            one = self._pending.get(record.run)
            if one is not None and one.attempt == record.attempt:
                one.over = True
                self._settle(one)

    def _settle(self, one: _Pending) -> None:
        if one.is_due(self._clock()):
            del self._pending[one.run]
            self._due.append(one)

    def _run(self) -> None:
        while not self._stopping.wait(TICK_SECONDS):
            self.tick()

    def tick(self) -> None:
        """Judge the attempts that are due."""
        while self._due:
            one = self._due.popleft()
            try:
                self._judge(one)
            except Exception as error:  # noqa: BLE001  a damaged file, or values near the limits of floats: the daemon must go on
                if not self._failed:
                    log.warning("no verdict on attempt %d of run %s: %r", one.attempt, one.name, error)
                self._failed = True

    def _judge(self, one: _Pending) -> None:
        self._flush()
        with self._history.reading() as connection:
            events = reader.events(connection, one.run)
            kinds = ((event["kind"], event["attempt"], event["rank"]) for event in events)
            if (CONTINUITY, one.attempt, None) in kinds:
                return  # by an earlier daemon
            facts = read_resume(connection, one.run, one.attempt, one.roles)
        if facts is None:
            return
        verdict = judge(facts.quantities, facts.step, facts.first_step)
        begins = [event["fields"] for event in events if (event["kind"], event["attempt"]) == ("restart", one.attempt)]
        after = str(begins[0].get("cause", "")) if begins else ""
        why = f"; `trackside run` restarted it after {cut(shown(after), MAX_CAUSE)}" if after else ""
        text = f"{_done_again(one.attempt, facts)}{why}; {'too few steps to judge it' if verdict is None else verdict.text}"
        now, labels, fields = self._wall(), (("run", one.name),), _fields(facts, verdict, text, after)
        event = Event(one.run, one.attempt, now, CONTINUITY, step=facts.step, fields=fields)
        self._publish(Batch("resumes", records=[event]))
        summary = f"run {one.name}: {text}"
        self._findings.append(Finding("RunRestarted", "info", labels, now, summary, once=True, run=one.run))
        if verdict is not None and verdict.alert:
            summary = f"run {one.name} does not continue where it was: {verdict.text}"
            advice = f"{_done_again(one.attempt, facts).capitalize()}. {TROUBLES[ALERT].advice()}"
            changed = [f"{one.what}: {number(one.before)} before, {number(one.after)} now" for one in verdict.changes]
            evidence = {"changed": changed}
            self._findings.append(
                Finding(ALERT, "warning", labels, now, summary, advice, once=True, run=one.run, evidence=evidence)
            )


def _done_again(attempt: int, facts: ResumeFacts) -> str:
    """Return a clause about where an attempt goes on, and what that costs."""
    anew = facts.step < facts.first_step
    how = f"begins again at step {number(facts.first_step)}" if anew else f"goes on after step {number(facts.step)}"
    where = f"attempt {attempt} {how}"
    down = f"{duration(facts.down_seconds)} after the last step"
    if not facts.repeated:
        return f"{where}, {down}"
    again = f"{counted(facts.repeated, 'step')} ({duration(facts.lost_seconds)})"
    return f"{where} of {number(facts.reached)}, {down}, so that {again} are done again"


def _fields(facts: ResumeFacts, verdict: ResumeVerdict | None, text: str, after: str) -> dict[str, Any]:
    """Return the fields of the event."""
    return {
        "text": text,
        "cause": "" if verdict is None else verdict.cause,
        "continues": None if verdict is None else not verdict.cause,
        "step": facts.step,
        "reached": facts.reached,
        "repeated_steps": facts.repeated,
        "repeated_seconds": round(facts.lost_seconds, 3),
        "down_seconds": round(facts.down_seconds, 3),
        **({"restarted_after": after, "ended": facts.ended} if after else {}),
        "changes": [] if verdict is None else [one._asdict() for one in verdict.changes],
    }
