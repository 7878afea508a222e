"""Thread that gathers the evidence of alerts, and returns it as `AlertNote` records."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from trackside_daemon.alerts.escalation import Escalation
from trackside_daemon.alerts.evidence.checkpoints import last_good_checkpoint
from trackside_daemon.alerts.evidence.deaths import deaths
from trackside_daemon.alerts.evidence.gpus import gpus
from trackside_daemon.alerts.evidence.machine import cgroups, cpu, host, io, memory
from trackside_daemon.alerts.evidence.ranks import ranks, samples
from trackside_daemon.alerts.evidence.recent_phases import INTERVAL, RecentPhases
from trackside_daemon.alerts.evidence.required import Part, required_parts
from trackside_daemon.alerts.evidence.slow_downs import causes
from trackside_daemon.alerts.evidence.sources import Case
from trackside_daemon.alerts.evidence.stacks import stacks
from trackside_daemon.history.record.sanitize import clean, to_json
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.records import Alert, AlertNote
from trackside_daemon.model.text import byte_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from trackside_daemon.alerts.evidence.sources import Sources

WAITING = 64  # most queued alerts; with more, the oldest get no evidence
MOST_BYTES = 96 * 1024  # largest evidence of one alert, in bytes of JSON

_GATHERERS: dict[Part, Callable[[Case], dict[str, Any]]] = {
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
    "diagnosis": lambda case: {"diagnosis": list(case.sources.diagnose(case.alert.run))} if case.alert.run else {},
}

# Parts that read the history: what led to the alert may still be in the queue of its writer.
_STORED: frozenset[Part] = frozenset({"samples", "deaths", "causes", "checkpoint", "diagnosis"})

log = logging.getLogger("trackside")


class _Request(NamedTuple):
    """Alert in the queue; samples after *until*, in Unix seconds, are not evidence."""

    alert: Alert
    until: float


class EvidenceGatherer:
    """Listener of alerts in the pipeline's thread, where it only queues them.

    Args:
        sources: Sources of evidence.
        publish: Called with a batch for the history.
        wall: Unix time, in seconds.
        clock: Monotonic clock, in seconds.
    """

    def __init__(
        self,
        sources: Sources,
        publish: Callable[[Batch], None],
        *,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._phases = RecentPhases(sources.state)
        self._sources = sources._replace(pause=self._pause, phases=self._phases.of)
        self._publish = publish
        self._wall = wall
        self._clock = clock
        self._escalation = Escalation()
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
            while len(self._queue) > WAITING:
                self._queue.popleft()
                if not self._has_overrun:
                    log.warning("more than %d alerts wait for evidence; the oldest get none", WAITING)
                self._has_overrun = True
            self._changed.notify_all()

    def _request(self, alert: Alert) -> _Request | None:
        """Return a request if the alert has begun or got worse."""
        change = self._escalation.of(alert)
        # An alert that got worse needs the samples up to now, not only those before its start.
        return change and _Request(alert, alert.started if change == "begun" else self._wall())

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._stopping.is_set(), INTERVAL)
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
        alert, evidence = request.alert, self.gather(request.alert, request.until)
        if evidence and not self._stopping.is_set():
            note = AlertNote(alert.alert, alert.started, alert.run, alert.labels, evidence)
            self._publish(Batch("evidence", records=[note]))

    def gather(self, alert: Alert, until: float) -> dict[str, Any]:
        """Return the evidence of an alert; ``missing`` has the reasons why parts of it are absent."""
        case = Case(alert, self._sources, self._clock(), self._wall(), until, [])
        evidence: dict[str, Any] = {}
        parts = required_parts(alert.alert, dict(alert.labels))
        if not _STORED.isdisjoint(parts):
            self._sources.wait_written()
        for part in parts:
            try:
                evidence |= _GATHERERS[part](case)
            except Exception as error:  # a part that fails must not cost the others
                case.missing.append(f"{part}: {type(error).__name__}")
                if not self._has_failed:
                    why = f"{type(error).__name__}: {error}"
                    traceback = not isinstance(error, sqlite3.Error)  # a damaged file is no fault of the code
                    text = "the %s of %s cannot be gathered: %s; further failures are not logged"
                    log.error(text, part, alert.alert, why, exc_info=traceback)  # noqa: TRY400  with one if it helps
                self._has_failed = True
        return _bounded(evidence, case)

    def _pause(self, seconds: float) -> None:
        self._stopping.wait(seconds)


def _bounded(evidence: dict[str, Any], case: Case) -> dict[str, Any]:
    """Return the evidence as the history stores it, without its largest parts if it is too large."""
    alert = case.alert
    note = clean(AlertNote(alert.alert, alert.started, evidence=evidence))
    kept = dict(note.evidence) if isinstance(note, AlertNote) else {}
    sizes = {name: len(to_json(value).encode()) for name, value in kept.items()}
    # The reserve is for the list of missing parts.
    while sum(sizes.values()) > MOST_BYTES - 2048:
        largest = max(sizes, key=lambda name: sizes[name])
        case.missing.append(f"{largest}: {byte_size(sizes.pop(largest))} is too large")
        del kept[largest]
    return {**kept, **({"missing": case.missing[:16]} if case.missing else {})}
