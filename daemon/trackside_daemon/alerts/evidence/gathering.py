"""Thread that gathers the evidence of alerts, and returns it as `AlertNote` records."""

import logging
import re
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from math import inf
from typing import Any, NamedTuple

from trackside.wire import EXCEPTION
from trackside_daemon.alerts.active_alert import ADDITION, last_occurrence
from trackside_daemon.alerts.evidence.batches import batches
from trackside_daemon.alerts.evidence.machine import cgroups, cpu, gpus, host, io, memory, xids
from trackside_daemon.alerts.evidence.ranks import ranks, samples, stacks
from trackside_daemon.alerts.evidence.required import ADDITIONS, OF_OCCURRENCES, Part, required_parts
from trackside_daemon.alerts.evidence.slow_downs import causes, neighbours
from trackside_daemon.alerts.evidence.sources import AlertCase, Sources
from trackside_daemon.alerts.firing_alerts import Escalation
from trackside_daemon.causes.readings import BEFORE
from trackside_daemon.history.checkpoint_rows import checkpoints
from trackside_daemon.history.console import lines
from trackside_daemon.history.read import reader
from trackside_daemon.history.read.resources import Resource
from trackside_daemon.history.sanitize import clean, to_json
from trackside_daemon.model.families import training as f
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.records import STEP, Alert, AlertNote
from trackside_daemon.model.state import State
from trackside_daemon.model.text import byte_size, cut, duration, number, shown

MAX_EVENTS = 10  # most events
MAX_EVENT_AGE_SECONDS = 600.0  # greatest age of an event, in seconds
INTERVAL_SECONDS = 5.0  # seconds between two recorded values
MAX_SERIES = 4096  # most series; phases of more ranks are not recorded
LINES, LINE_LENGTH = 10, 300  # last lines of output that are evidence, and most columns of one
SEARCHED = 50  # last lines among which that of an error is searched
KEEPING_SECONDS = 0.5  # after which the process that keeps output has that of the end
# An error with its text or at the end of its line; those of torchrun only say that a rank has ended.
_ERROR = re.compile(
    r"\w((?<!\bChildFailed)Error|(?<!\bSignal)Exception|Interrupt)(: *\S|$)|\bFatal Python error|\bwhat\(\)"
    r"|\b(Killed|Aborted|Segmentation fault|Bus error)\b"
)
_WORD = re.compile(r"\w")


def last_good_checkpoint(case: AlertCase) -> dict[str, Any]:
    """Return the newest checkpoint that an audit has found intact and that is from before the trouble, and a sentence with it."""
    if not case.alert.run:
        return {}
    evidence, began = case.alert.evidence, last_occurrence(case.alert)["time"]
    with case.sources.history.reading() as connection:
        records = checkpoints(connection, case.alert.run)
    differs, equal = "equal_at_step" in evidence, evidence.get("equal_at_step", inf)
    last = -1 if equal is None else min(equal, evidence.get("doubtful_from_step", evidence.get(STEP, inf)) - 1)
    before = [one for one in records if one.good and one.time <= began]
    good = [one for one in before if (not differs if one.step is None else one.step <= last)]
    if not good:
        return {ADDITION: "No intact checkpoint from before is known."} if records else {}
    newest = good[-1]
    age = max(0.0, began - newest.time)
    about = {"path": newest.path, "step": newest.step, "age_seconds": round(age, 1), "bytes": newest.bytes}
    step = "" if newest.step is None else f"of step {number(newest.step)} and "
    text = f"The last intact checkpoint from before, {step}{duration(age)} earlier, is {shown(newest.path)}."
    return {"checkpoint": about, ADDITION: text}


def console(case: AlertCase) -> dict[str, Any]:
    """Return the last lines that the command of the run printed, and a sentence with the one of an error, else the last one."""
    if not case.alert.run:
        return {}
    with case.sources.history.reading() as connection:
        launch = reader.launch(connection, case.alert.run)
    if launch:
        case.sources.pause(KEEPING_SECONDS)
    kept = lines.split(case.sources.console(launch))[-SEARCHED:]
    printed = [cut(shown(text), LINE_LENGTH) for line in kept if (text := lines.plain(line).strip())]
    if not printed:
        return {}
    found = (line for pattern in (_ERROR, _WORD) for line in reversed(printed) if pattern.search(line))
    said = next(found, printed[-1])
    return {
        "console": printed[-LINES:],
        **({} if said in case.alert.summary else {ADDITION: f"Its command printed: {said}"}),
    }


def deaths(case: AlertCase) -> dict[str, Any]:
    """Return the exception of the rank, the recent events of the run with the ends of its ranks, and recent Xid errors."""
    errors = xids(case)
    if not case.alert.run:
        return errors
    with case.sources.history.reading() as connection:
        latest = reader.events(connection, case.alert.run, MAX_EVENTS)
    recent = [event for event in latest if case.wall - event["time"] <= MAX_EVENT_AGE_SECONDS]
    raised = [event for event in recent if event["kind"] == EXCEPTION and str(event["rank"]) in {*case.ranks(), "None"}]
    events = [
        {name: event[name] for name in ("time", "rank", "step", "kind", "fields")}
        for event in recent
        if event["kind"] != EXCEPTION
    ]
    return {
        **errors,
        **({"exception": raised[-1]["fields"]} if raised else {}),
        **({"events": events} if events else {}),
    }


class RecentPhases:
    """Values of the last half an hour, recorded and read by one thread.

    Args:
        state: Newest values of all families.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._points: dict[tuple[str, ...], deque[tuple[float, float]]] = {}

    def record(self, now: float, wall: float) -> None:
        """Record the present values; *now* is in monotonic and *wall* in Unix seconds."""
        (values,) = self._state.values(now, f.PHASE_SECONDS)
        # Series that are gone are forgotten, so that ended runs do not accumulate.
        self._points = {labels: points for labels, points in self._points.items() if labels in values}
        for labels, value in values.items():
            if isinstance(value, float) and (labels in self._points or len(self._points) < MAX_SERIES):
                points = self._points.setdefault(labels, deque(maxlen=int(BEFORE / INTERVAL_SECONDS)))
                points.append((wall, value))

    def of(self, run: str) -> list[Resource]:
        """Return the phases of a run, by its name."""
        names = f.PHASE_SECONDS.labels
        return [
            Resource(f.PHASE_SECONDS.name, dict(zip(names, labels, strict=True)), list(points))
            for labels, points in self._points.items()
            if labels[0] == run
        ]


MAX_QUEUED_ALERTS = 64  # most queued alerts; with more, the oldest get no evidence
MAX_BYTES = 96 * 1024  # largest evidence of one alert, in bytes of JSON

_GATHERERS: dict[Part, Callable[[AlertCase], dict[str, Any]]] = {
    "batches": batches,
    "ranks": ranks,
    "samples": samples,
    "stacks": stacks,
    "deaths": deaths,
    "gpus": gpus,
    "memory": memory,
    "cpu": cpu,
    "io": io,
    "host": host,
    "cgroups": cgroups,
    "causes": causes,
    "checkpoint": last_good_checkpoint,
    "console": console,
    "neighbours": neighbours,
    "diagnosis": lambda case: {"diagnosis": list(case.sources.diagnose(case.alert.run))} if case.alert.run else {},
}

# Parts that read the history: what led to the alert may still be in the queue of its writer.
_STORED: frozenset[Part] = frozenset({"samples", "deaths", "causes", "checkpoint", "diagnosis"})

log = logging.getLogger("trackside")


class _Request(NamedTuple):
    """Alert in the queue; samples after *until*, in Unix seconds, are not evidence. It came *again*."""

    alert: Alert
    until: float
    again: bool


class EvidenceGatherer:
    """Listener of alerts in the pipeline's thread, where it only queues them.

    Args:
        sources: Sources of evidence.
        publish: Called with a batch for the history.
        wall: Unix time, in seconds.
        clock: Monotonic clock, in seconds.
        pause: See `Sources`; None to wait in real time, until `stop`.
        fired: Alerts that an earlier daemon gathered evidence of; what is seen now is none of it.
    """

    def __init__(
        self,
        sources: Sources,
        publish: Callable[[Batch], None],
        *,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] | None = None,
        fired: Iterable[Alert] = (),
    ) -> None:
        self._phases = RecentPhases(sources.state)
        self._sources = sources._replace(pause=pause or self._pause, phases=self._phases.of)
        self._publish = publish
        self._wall = wall
        self._clock = clock
        self._escalation = Escalation(fired)
        self._queue: deque[_Request] = deque()
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._has_failed = self._has_overrun = False
        self._thread = threading.Thread(target=self._run, name="trackside-evidence", daemon=True)

    def start(self) -> None:
        """Begin to gather."""
        self._thread.start()

    def stop(self) -> None:
        """End; queued alerts get no evidence."""
        with self._changed:
            self._stopping.set()
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def accept(self, batch: Batch) -> None:
        """Queue the alerts of a batch that have begun or got worse."""
        alerts = (record for record in batch.records if isinstance(record, Alert))
        requests = [request for alert in alerts if (request := self._request(alert))]
        if not requests:
            return
        with self._changed:
            self._queue.extend(requests)
            # In a flood the newest alerts are worth more, and the pipeline must not wait.
            while len(self._queue) > MAX_QUEUED_ALERTS:
                self._queue.popleft()
                if not self._has_overrun:
                    log.warning("more than %d alerts wait for evidence; the oldest get none", MAX_QUEUED_ALERTS)
                self._has_overrun = True
            self._changed.notify_all()

    def _request(self, alert: Alert) -> _Request | None:
        """Return a request if the alert has begun or got worse."""
        change = self._escalation.of(alert)
        # An alert that got worse needs the samples up to now, not only those before its start.
        until = alert.started if change == "begun" else self._wall()
        return _Request(alert, until, change == "again") if change else None

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._stopping.is_set(), INTERVAL_SECONDS)
                if self._stopping.is_set():
                    return
                request = self._queue.popleft() if self._queue else None
            self._phases.record(self._clock(), self._wall())
            if request is None:
                continue
            try:
                self._handle(request)
            except Exception:  # missing evidence must not stop the daemon
                if not self._has_failed:
                    log.exception("no evidence of %s; further failures are not logged", request.alert.alert)
                self._has_failed = True

    def _handle(self, request: _Request) -> None:
        alert, evidence = request.alert, self.gather(request.alert, request.until, again=request.again)
        if evidence and not self._stopping.is_set():
            note = AlertNote(alert.alert, alert.started, alert.run, alert.labels, evidence)
            self._publish(Batch("evidence", records=[note]))

    def gather(self, alert: Alert, until: float, *, again: bool = False) -> dict[str, Any]:
        """Return the evidence of an alert, of one that came *again* some; ``missing`` has why parts are absent."""
        case = AlertCase(alert, self._sources, self._clock(), self._wall(), until, [])
        evidence: dict[str, Any] = {}
        parts = [
            part for part in required_parts(alert.alert, dict(alert.labels)) if not again or part in OF_OCCURRENCES
        ]
        additions = []
        is_written = False
        for part in parts:
            if part in _STORED and not is_written:
                is_written = True
                self._sources.wait_written()
            try:
                found = _GATHERERS[part](case)
                additions.append(found.pop(ADDITION, ""))
                evidence |= found
            except Exception as error:  # a part that fails must not cost the others
                case.missing.append(f"{part}: {type(error).__name__}")
                if not self._has_failed:
                    why = f"{type(error).__name__}: {error}"
                    traceback = not isinstance(error, sqlite3.Error)  # a damaged file is no fault of the code
                    text = "the %s of %s cannot be gathered: %s; further failures are not logged"
                    log.error(text, part, alert.alert, why, exc_info=traceback)  # noqa: TRY400  with one if it helps
                self._has_failed = True
        if not ADDITIONS.isdisjoint(parts):
            evidence[ADDITION] = " ".join(filter(None, additions))
        return _bounded(evidence, case)

    def _pause(self, seconds: float) -> None:
        self._stopping.wait(seconds)


def _bounded(evidence: dict[str, Any], case: AlertCase) -> dict[str, Any]:
    """Return the evidence as the history stores it, without its largest parts if it is too large."""
    alert = case.alert
    note = clean(AlertNote(alert.alert, alert.started, evidence=evidence))
    kept = dict(note.evidence) if isinstance(note, AlertNote) else {}
    sizes = {name: len(to_json(value).encode()) for name, value in kept.items()}
    # The reserve is for the list of missing parts.
    while sum(sizes.values()) > MAX_BYTES - 2048:
        largest = max(sizes, key=lambda name: sizes[name])
        case.missing.append(f"{largest}: {byte_size(sizes.pop(largest))} is too large")
        del kept[largest]
    return {**kept, **({"missing": case.missing[:16]} if case.missing else {})}
