"""Delivery of alerts to sinks, each by a thread of its own."""

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from trackside_daemon.alerts.delivery.sink_worker import SinkWorker
from trackside_daemon.alerts.sinks.sink import (
    Sink,
    SinkFilter,
    notification_of,
)
from trackside_daemon.model.families import alerts as alert_families
from trackside_daemon.model.metric import Batch, Sample
from trackside_daemon.model.records import Alert, AlertKey, AlertNote

FLUSH_SECONDS = 3.0  # seconds for which a stopping daemon waits for messages that are being sent

STORED = "sinks.json"  # name of the file, in the directory of the history


class _Configured(NamedTuple):
    since: float
    filter: SinkFilter


class ConfiguredSinks:
    """The sinks of this daemon, and since when each has its present filter, in Unix seconds.

    Args:
        path: The file; None to keep nothing. If it cannot be written, as on a full disk, sinks are new to the next daemon.
        wall: Unix time, in seconds.
    """

    def __init__(self, path: Path | None = None, wall: Callable[[], float] = time.time) -> None:
        self._path = path
        self._wall = wall
        self._sinks: dict[str, _Configured] = {}
        with suppress(OSError, msgspec.MsgspecError):
            if path is not None:
                self._sinks = msgspec.json.decode(path.read_bytes(), type=dict[str, _Configured])

    def register(self, sinks: Iterable[Sink]) -> None:
        """Use these sinks from now on; one with an equal filter is the one of before."""
        new = {sink.name: _Configured(self._wall(), sink.filter) for sink in sinks}
        kept = {name: known for name, known in self._sinks.items() if name in new and new[name].filter == known.filter}
        self._sinks = {**new, **kept}
        if self._path is None:
            return
        unfinished = self._path.with_suffix(".unfinished")
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
            with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(msgspec.json.encode(self._sinks))
            unfinished.replace(self._path)

    def owes(self, sink: str, alert: Alert) -> bool:
        """Return True if a sink has sent an alert of an earlier daemon, or should have: it has begun since."""
        known = self._sinks.get(sink)
        if known is None or sink in alert.notified:
            return sink in alert.notified
        accepts = known.filter.accepts if alert.ended is None else known.filter.accepts_late
        return alert.started >= known.since and accepts(alert)


class Delivery:
    """Delivers alerts to sinks, each by a thread of its own; see `trackside_daemon.alerts.stages.BatchListener`.

    Args:
        sinks: Sinks to use.
        note: Called in a sink's thread with a record for the history of each alert that was sent.
        configured: Since when each sink is configured; None if nothing is kept for the next daemon.
        flush_seconds: See `FLUSH_SECONDS`.
    """

    def __init__(
        self,
        sinks: Sequence[Sink],
        note: Callable[[AlertNote], None],
        configured: ConfiguredSinks | None = None,
        *,
        flush_seconds: float = FLUSH_SECONDS,
    ) -> None:
        self._note = note
        self._flush_seconds = flush_seconds
        self._configured = configured or ConfiguredSinks()
        self._configured.register(sinks)
        self._lock = threading.Lock()
        self._firing: dict[AlertKey, Alert] = {}
        self._started = False
        self._workers = [SinkWorker(sink, self._register_sent) for sink in sinks]

    def restore(self, alerts: Iterable[Alert]) -> None:
        """Restore alerts that fired when an earlier daemon ended or had ended shortly before; send what is unsent.

        A sink that was configured since gets none of them before `judge`.
        """
        with self._lock:
            for alert in alerts:
                if alert.ended is None:
                    self._firing[alert.key] = alert
                for worker in self._workers:
                    if self._configured.owes(worker.sink.name, alert):
                        worker.restore(alert)

    def judge(self) -> None:
        """Have all sinks send what still fires, once the runs of the earlier daemon have returned or are lost."""
        with self._lock:
            for worker in self._workers:
                worker.put([*self._firing.values()])

    def accept(self, batch: Batch) -> None:
        """See `BatchListener`."""
        alerts = [record for record in batch.records if isinstance(record, Alert)]
        if not alerts:
            return
        with self._lock:
            for alert in alerts:
                # A new record lacks the earlier notifications, so they are copied.
                before = self._firing.pop(alert.key, alert)
                if alert.ended is None:
                    self._firing[alert.key] = replace(alert, notified=before.notified)
            for worker in self._workers:
                worker.put(alerts)

    def start(self) -> None:
        """Begin to send."""
        self._started = True
        for worker in self._workers:
            worker.start()

    def change(self, sinks: Sequence[Sink]) -> None:
        """Use these sinks from now on; a sink continues the queue of its predecessor of the same name."""
        with self._lock:
            self._configured.register(sinks)
            before = {worker.sink.name: worker for worker in self._workers}
            # The old workers release their outboxes before the new ones use them.
            for worker in self._workers:
                worker.release()
            self._workers = [self._successor(sink, before.get(sink.name)) for sink in sinks]
            if self._started:
                for worker in self._workers:
                    worker.start()

    def stop(self) -> None:
        """Send what is queued, for a few seconds at most, and end."""
        until = time.monotonic() + self._flush_seconds
        with self._lock:
            workers = list(self._workers)
        # All sinks flush at the same time, so that they share the time limit.
        for worker in workers:
            worker.flush()
        for worker in workers:
            worker.stop(max(until - time.monotonic(), 0.0))

    def statuses(self) -> dict[str, dict[str, Any]]:
        """Return the state of each sink by its name, for the API."""
        return {worker.sink.name: worker.status() for worker in list(self._workers)}

    def samples(self) -> list[Sample]:
        """Return the samples of all sinks for /metrics."""
        samples = []
        for name, status in self.statuses().items():
            samples += [
                Sample(alert_families.NOTIFICATIONS, (name,), float(status["sent"] + status["failed"])),
                Sample(alert_families.NOTIFICATIONS_FAILED, (name,), float(status["failed"])),
                Sample(alert_families.NOTIFICATIONS_DROPPED, (name,), float(status["dropped"])),
                Sample(alert_families.NOTIFICATIONS_QUEUED, (name,), float(status["queued"])),
            ]
            if status["last_success"] is not None:
                samples.append(Sample(alert_families.NOTIFICATIONS_LAST_SUCCESS, (name,), status["last_success"]))
        return samples

    def _successor(self, sink: Sink, before: SinkWorker | None) -> SinkWorker:
        """Return the worker of a sink, which continues that of the same name; a new filter gets all firing alerts."""
        worker = SinkWorker(sink, self._register_sent, before)
        if before is not None and before.sink.filter == sink.filter:
            return worker
        # A new sink, or a wider filter, has not sent the alerts that fire already.
        for alert in self._firing.values():
            worker.restore(alert)
        return worker

    def _register_sent(self, sink: str, alerts: Sequence[Alert]) -> None:
        """Record that a sink has sent these alerts, as they were then."""
        for alert in alerts:
            notified = {sink: notification_of(alert)}
            with self._lock:
                firing = self._firing.get(alert.key)
                if firing is not None:
                    self._firing[alert.key] = replace(firing, notified={**firing.notified, **notified})
            self._note(AlertNote(alert.alert, alert.started, alert.run, alert.labels, notified=notified))
