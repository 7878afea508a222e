"""The thread of one sink: gives it what is due, and tries again what it did not take."""

from __future__ import annotations

import logging
import random
import threading
import time
from typing import TYPE_CHECKING, Any

from trackside_daemon.alerts.delivery.sending import Line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trackside_daemon.alerts.sinks.sink import Message, Outbox, SendError, Sink
    from trackside_daemon.model.records import Alert

FIRST_SECONDS = 1.0
LONGEST_SECONDS = 60.0
"""Between two tries: the first, then twice as long each time, at most this; less up to half of it by chance."""

log = logging.getLogger("trackside")


class SinkWorker:
    """One sink and what waits for it; a slow one delays no other.

    Args:
        sink: Asked for one message after the other.
        before: The sink's predecessor of the same name, which is released: what waits for it and its counts are taken over.
        told: Called with what people were told anew: alerts as they were then.

    Attributes:
        outbox: What waits.
        tries: Messages that the sink was asked to take.
        failures: Of these, those that it did not.
        success: When it took one last, in Unix seconds; None for never.
        error: What was wrong the last time, in one line; empty once a message was taken.
    """

    def __init__(
        self, sink: Sink, told: Callable[[str, Sequence[Alert]], None], before: SinkWorker | None = None
    ) -> None:
        self.sink = sink
        self.outbox: Outbox = before.outbox if before is not None else sink.outbox()
        self.outbox.wants = sink.wants
        self.tries: int = before.tries if before is not None else 0
        self.failures: int = before.failures if before is not None else 0
        self.success: float | None = before.success if before is not None else None
        self.error: str = before.error if before is not None else ""
        self._told = told
        self._retry = 0.0
        self._pause = 0.0
        self._flushing = self._ended = False
        self._line: Line = before._line if before is not None else Line()  # noqa: SLF001  of this class
        self._message: Message | None = None
        self._since: float | None = None
        self._changed: threading.Condition = before._changed if before is not None else threading.Condition()  # noqa: SLF001  of this class
        self._thread = threading.Thread(target=self._run, name=f"trackside-sink-{sink.name}", daemon=True)

    def restore(self, alert: Alert) -> None:
        """One that fired when a daemon before this one ended, or had ended of late."""
        with self._changed:
            self.outbox.restore(alert, time.monotonic(), told=alert.notified.get(self.sink.name))

    def put(self, alerts: Sequence[Alert]) -> None:
        """Alerts, anew or as they are now."""
        with self._changed:
            for alert in alerts:
                self.outbox.put(alert, time.monotonic())
            self._changed.notify_all()

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def flush(self) -> None:
        """Send what waits once, whether it is due or not, and end."""
        with self._changed:
            self._flushing = True
            self._changed.notify_all()

    def stop(self, patience: float) -> None:
        """End, at the latest after *patience* seconds; what is being sent then is left to itself."""
        if self._thread.is_alive():
            self._thread.join(patience)
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def release(self) -> None:
        """End at once; what is being sent waits again, for a successor. If it arrives all the same, that is noted."""
        with self._changed:
            self._ended = True
            if self._message is not None:
                self.outbox.failed(self._message, time.monotonic(), never=False)
            self._changed.notify_all()

    def standing(self) -> dict[str, Any]:
        """How it is, for the API."""
        with self._changed:
            return {
                "severity": self.sink.wants.severity,
                "also": sorted(self.sink.wants.also),
                "queued": len(self.outbox),
                "sent": self.tries - self.failures,
                "failed": self.failures,
                "dropped": self.outbox.dropped,
                "sending_since": self._since,
                "last_success": self.success,
                "last_error": self.error,
            }

    def _run(self) -> None:
        while (message := self._next()) is not None:
            problem = self._line.send(self.sink, message)
            with self._changed:
                self._message = self._since = None
                news = self._heard(message, problem)
                self._changed.notify_all()
            if news:
                self._told(self.sink.name, news)

    def _next(self) -> Message | None:
        """The next message, waited for; None when it is to end."""
        with self._changed:
            while not self._ended:
                now = time.monotonic()
                due = self.outbox.due()
                wait = None if due is None else max(due, self._retry) - now
                if self._flushing or (wait is not None and wait <= 0):
                    message = self.outbox.take(now, everything=self._flushing)
                    if message is not None or self._flushing:
                        self._message, self._since = message, None if message is None else time.time()
                        return message
                else:
                    self._changed.wait(wait)
            return None

    def _heard(self, message: Message, problem: SendError | None) -> Sequence[Alert]:
        now = time.monotonic()
        if problem is not None and self._ended:
            return ()
        self.tries += 1
        if problem is None:
            if self.error:
                log.info("alerts.sinks: %s takes messages again", self.sink.name)
            self.error, self.success = "", time.time()
            self._pause = self._retry = 0.0
            return self.outbox.sent(message, now)
        self.failures += 1
        if str(problem) != self.error:
            log.warning("alerts.sinks: %s: %s", self.sink.name, problem)
            self.error = str(problem)
        self.outbox.failed(message, now, never=problem.again == "never")
        if problem.again != "never":
            longest = problem.again == "later"
            self._pause = LONGEST_SECONDS if longest else min(max(2 * self._pause, FIRST_SECONDS), LONGEST_SECONDS)
            self._retry = now + self._pause * (1 - random.random() / 2)  # noqa: S311  no secret
            self._ended = self._ended or self._flushing
        return ()
