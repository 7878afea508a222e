"""Threads of one sink: send the messages that are due, and retry those that failed."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from trackside_daemon.alerts.sinks.sink import AlertOutbox, Sink, SinkMessage
from trackside_daemon.http_client.errors import SendError
from trackside_daemon.model.backoff import Backoff
from trackside_daemon.model.records import Alert

SEND_SECONDS = 60.0  # seconds after which a sink that has not returned is abandoned; the message is retried
MAX_IN_FLIGHT = 2  # most messages of a sink in flight at once; until one of them ends, no further one is sent
FIRST_SECONDS = 1.0  # back-off after the first failure; it doubles with each further one
LONGEST_SECONDS = 60.0  # Longest back-off. Each back-off is shortened by up to a half at random.

log = logging.getLogger("trackside")


class SendThread(threading.Thread):
    """Thread that sends one message.

    Attributes:
        error: Error of the sink; None if the message was sent.
    """

    def __init__(self, sink: Sink, message: SinkMessage) -> None:
        super().__init__(name=f"trackside-send-{sink.name}", daemon=True)
        self._sink, self._message = sink, message
        self.error: SendError | None = None

    def run(self) -> None:
        """Send the message."""
        try:
            self._sink.send(self._message)
        except SendError as error:
            self.error = error
        except BaseException as error:  # noqa: BLE001  a fault of the sink must not spread; its text may hold a secret
            fault = type(error).__name__
            self.error = SendError(f"the message cannot be sent, and is given up: {fault}", "never")


class SinkMessages:
    """Messages in flight of a sink and of its successors of the same name, which are new objects after each reload."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._in_flight: list[SendThread] = []

    def send(self, sink: Sink, message: SinkMessage) -> SendError | None:
        """Send a message; block for `SEND_SECONDS` at most.

        Returns:
            The error; None if the message was sent.
        """
        thread = SendThread(sink, message)
        with self._lock:
            self._in_flight = [other for other in self._in_flight if other.is_alive()]
            if len(self._in_flight) >= MAX_IN_FLIGHT:
                return SendError(
                    f"{MAX_IN_FLIGHT} messages hang in the sink; if they do not end, restart the daemon", "later"
                )
            try:
                thread.start()
            # The limit of threads or of memory is reached.
            except RuntimeError:
                return SendError("no thread can be started for the message; raise the limit of threads")
            self._in_flight.append(thread)
        thread.join(SEND_SECONDS)
        if not thread.is_alive():
            return thread.error
        return SendError(f"the message was not accepted within {SEND_SECONDS:g} s; retrying")


@dataclass(slots=True, eq=False)
class _Lane:
    """Messages of one urgency, which wait neither for the others nor for the retries of the others."""

    urgent: bool
    channel: SinkMessages = field(default_factory=SinkMessages)  # messages in flight, also those of earlier workers
    message: SinkMessage | None = None  # message that is being sent; None for none
    since: float | None = None  # Unix time at which its sending began
    # Back-off after failures.
    backoff: Backoff = field(default_factory=lambda: Backoff(FIRST_SECONDS, LONGEST_SECONDS, jitter=True))
    retry: float = 0.0  # time of the monotonic clock before which nothing is sent
    ended: bool = False  # a message could not be sent while the daemon stops, which has no time for a retry


class SinkWorker:
    """One sink with its outbox; a slow sink delays no other, and its urgent messages wait for no others.

    Args:
        sink: Sink, which sends one message after the other.
        on_sent: Called with the sink's name and the alerts that it has newly sent, as they were then.
        before: Released worker of the previous sink of the same name, whose outbox and counts are continued.

    Attributes:
        outbox: Queue of alerts.
        tries: Messages that the sink tried to send.
        failures: Messages that it could not send.
        success: Unix time of the last message that was sent; None for none.
        error: Error of the last message, in one line; empty if it was sent.
    """

    def __init__(
        self, sink: Sink, on_sent: Callable[[str, Sequence[Alert]], None], before: SinkWorker | None = None
    ) -> None:
        self.sink = sink
        self.outbox: AlertOutbox = before.outbox if before is not None else sink.outbox()
        self.outbox.filter = sink.filter
        self.tries: int = before.tries if before is not None else 0
        self.failures: int = before.failures if before is not None else 0
        self.success: float | None = before.success if before is not None else None
        self.error: str = before.error if before is not None else ""
        self._on_sent = on_sent
        self._flushing = self._ended = False
        channels = [lane.channel for lane in before._lanes] if before is not None else [SinkMessages(), SinkMessages()]  # noqa: SLF001  of this class
        self._lanes: list[_Lane] = [
            _Lane(urgent, channel) for urgent, channel in zip((True, False), channels, strict=True)
        ]
        # The outbox is shared with the previous worker, whose last message may still be in flight, so the lock is too.
        self._changed: threading.Condition = before._changed if before is not None else threading.Condition()  # noqa: SLF001  of this class
        self._threads = [
            threading.Thread(target=self._run, args=(lane,), name=f"trackside-sink-{sink.name}", daemon=True)
            for lane in self._lanes
        ]

    def restore(self, alert: Alert) -> None:
        """Restore an alert that fired when an earlier daemon ended, or that had ended shortly before."""
        with self._changed:
            self.outbox.restore(alert, time.monotonic(), sent=alert.notified.get(self.sink.name))

    def put(self, alerts: Sequence[Alert]) -> None:
        """Queue new alerts, or the present state of older ones."""
        with self._changed:
            for alert in alerts:
                self.outbox.put(alert, time.monotonic())
            self._changed.notify_all()

    def start(self) -> None:
        """Begin to send."""
        for thread in self._threads:
            thread.start()

    def flush(self) -> None:
        """Send all queued alerts once, whether they are due or not, and end."""
        with self._changed:
            self._flushing = True
            self._changed.notify_all()

    def stop(self, patience: float) -> None:
        """End after *patience* seconds at the latest; a message in flight is abandoned then."""
        until = time.monotonic() + patience
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(until - time.monotonic(), 0.0))
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def release(self) -> None:
        """End at once, and queue a message in flight again for a successor; if it is sent all the same, that counts."""
        with self._changed:
            self._ended = True
            for lane in self._lanes:
                if lane.message is not None:
                    self.outbox.failed(lane.message, time.monotonic(), never=False)
            self._changed.notify_all()

    def status(self) -> dict[str, Any]:
        """Return the state of the sink, for the API."""
        with self._changed:
            return {
                "severity": self.sink.filter.severity,
                "also": sorted(self.sink.filter.also),
                "queued": len(self.outbox),
                "sent": self.tries - self.failures,
                "failed": self.failures,
                "dropped": self.outbox.dropped,
                "sending_since": min((lane.since for lane in self._lanes if lane.since is not None), default=None),
                "last_success": self.success,
                "last_error": self.error,
            }

    def _run(self, lane: _Lane) -> None:
        while (message := self._next(lane)) is not None:
            error = lane.channel.send(self.sink, message)
            with self._changed:
                lane.message = lane.since = None
                newly_sent = self._handle_result(lane, message, error)
                self._changed.notify_all()
            # Outside of the lock: Delivery acquires its own lock before this one, so the other order could deadlock.
            if newly_sent:
                self._on_sent(self.sink.name, newly_sent)

    def _next(self, lane: _Lane) -> SinkMessage | None:
        """Wait for the next message and return it; return None if the lane should end."""
        with self._changed:
            while not (self._ended or lane.ended):
                now = time.monotonic()
                due = self.outbox.due(urgent=lane.urgent)
                wait = None if due is None else max(due, lane.retry) - now
                if self._flushing or (wait is not None and wait <= 0):
                    message = self.outbox.next_message(now, urgent=lane.urgent, everything=self._flushing)
                    if message is not None or self._flushing:
                        lane.message, lane.since = message, None if message is None else time.time()
                        return message
                else:
                    self._changed.wait(wait)
            return None

    def _handle_result(self, lane: _Lane, message: SinkMessage, error: SendError | None) -> Sequence[Alert]:
        """Register the result of a message, and return the alerts that it has newly sent."""
        now = time.monotonic()
        # release() has queued the message again, so a successor retries it.
        if error is not None and self._ended:
            return ()
        self.tries += 1
        if error is None:
            if self.error:
                log.info("alerts.sinks: %s works again", self.sink.name)
            self.error, self.success = "", time.time()
            lane.backoff.reset()
            lane.retry = 0.0
            return self.outbox.sent(message, now)
        self.failures += 1
        # The same error is logged once, not at each retry.
        if str(error) != self.error:
            log.warning("alerts.sinks: %s: %s", self.sink.name, error)
            self.error = str(error)
        self.outbox.failed(message, now, never=error.retry == "never")
        if error.retry != "never":
            lane.retry = now + lane.backoff.next_delay(longest=error.retry == "later")
            lane.ended = self._flushing
        return ()
