"""People are told of what the book says: each sink by a thread of its own."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trackside_daemon.alerts.delivery.sink_worker import SinkWorker
from trackside_daemon.alerts.sinks.sink_filter import Key, key, said
from trackside_daemon.model.metric import Metric, Sample
from trackside_daemon.model.records import Alert, AlertNote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from trackside_daemon.alerts.sinks.sink import Sink
    from trackside_daemon.model.metric import Batch

FLUSH_SECONDS = 3.0
"""So long the end of the daemon waits for messages that are on their way."""

TRIES = Metric("trackside_notifications_total", "counter", "Messages that a sink of alerts tried to send.", ("sink",))
FAILED = Metric(
    "trackside_notifications_failed_total",
    "counter",
    "Messages that the sink could not send, or not within 60 s; it retries them.",
    ("sink",),
)
DROPPED = Metric(
    "trackside_notifications_dropped_total",
    "counter",
    "Notifications that the sink gave up: the alert ended before, or an hour ago, the queue was full, or the receiver refused it.",
    ("sink",),
)
QUEUED = Metric(
    "trackside_notifications_queue_length", "gauge", "Alerts that wait for the sink to send them.", ("sink",)
)
LAST_SUCCESS = Metric(
    "trackside_notifications_last_success_timestamp_seconds",
    "gauge",
    "Time of the last message that the sink sent, in Unix time.",
    ("sink",),
    unit="seconds",
)


class Delivery:
    """See `trackside_daemon.alerts.registry.AlertListener`.

    Args:
        sinks: Ways to tell people.
        note: Called, in a sink's thread, with what the history is to know: who was told.
    """

    def __init__(self, sinks: Iterable[Sink], note: Callable[[AlertNote], None]) -> None:
        self._note = note
        self._lock = threading.Lock()
        self._firing: dict[Key, Alert] = {}
        self._started = False
        self._couriers = [SinkWorker(sink, self._tell) for sink in sinks]

    def restore(self, fired: Iterable[Alert]) -> None:
        """What fired when a daemon before this one ended, and what ended of late: a sink that has not told it does."""
        with self._lock:
            for alert in fired:
                if alert.ended is None:
                    self._firing[key(alert)] = alert
                for courier in self._couriers:
                    courier.restore(alert)

    def accept(self, batch: Batch) -> None:
        """See `AlertListener`."""
        alerts = [record for record in batch.records if isinstance(record, Alert)]
        if not alerts:
            return
        with self._lock:
            for alert in alerts:
                known = self._firing.pop(key(alert), alert)
                if alert.ended is None:
                    self._firing[key(alert)] = replace(alert, notified=known.notified)
            for courier in self._couriers:
                courier.put(alerts)

    def start(self) -> None:
        """Begin to send."""
        self._started = True
        for courier in self._couriers:
            courier.start()

    def change(self, sinks: Iterable[Sink]) -> None:
        """Use these sinks from now on; what waits for one of the same name goes on waiting."""
        with self._lock:
            before = {courier.sink.name: courier for courier in self._couriers}
            for courier in self._couriers:
                courier.release()
            self._couriers = [self._succeeding(sink, before.get(sink.name)) for sink in sinks]
            if self._started:
                for courier in self._couriers:
                    courier.start()

    def stop(self) -> None:
        """Give what waits, for 3 seconds at most, and end."""
        until = time.monotonic() + FLUSH_SECONDS
        with self._lock:
            couriers = list(self._couriers)
        for courier in couriers:
            courier.flush()
        for courier in couriers:
            courier.stop(max(until - time.monotonic(), 0.0))

    def standings(self) -> dict[str, dict[str, Any]]:
        """How each sink is, for the API."""
        return {courier.sink.name: courier.standing() for courier in list(self._couriers)}

    def samples(self) -> list[Sample]:
        """How each sink is, for /metrics."""
        found = []
        for name, of in self.standings().items():
            found += [
                Sample(TRIES, (name,), float(of["sent"] + of["failed"])),
                Sample(FAILED, (name,), float(of["failed"])),
                Sample(DROPPED, (name,), float(of["dropped"])),
                Sample(QUEUED, (name,), float(of["queued"])),
            ]
            if of["last_success"] is not None:
                found.append(Sample(LAST_SUCCESS, (name,), of["last_success"]))
        return found

    def _succeeding(self, sink: Sink, before: SinkWorker | None) -> SinkWorker:
        """The courier of a sink, which goes on where the one of its name was; what fires is new to it if it tells of others."""
        courier = SinkWorker(sink, self._tell, before)
        if before is not None and before.sink.wants == sink.wants:
            return courier
        for alert in self._firing.values():
            courier.restore(alert)
        return courier

    def _tell(self, sink: str, alerts: Sequence[Alert]) -> None:
        """People were told of these by a sink, as they were then."""
        for alert in alerts:
            news = {sink: said(alert)}
            with self._lock:
                known = self._firing.get(key(alert))
                if known is not None:
                    self._firing[key(alert)] = replace(known, notified={**known.notified, **news})
            self._note(AlertNote(alert.alert, alert.started, alert.run, alert.labels, notified=news))
