"""One line of the log when an alert begins, gets worse or is over; at once, and whatever is silenced."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING

from trackside_daemon.alerts.sinks.sink import Message
from trackside_daemon.alerts.sinks.sink_filter import Key, Wants, key, said

if TYPE_CHECKING:
    from trackside_daemon.alerts.sinks.log.settings import LogSinkSection
    from trackside_daemon.model.records import Alert, Notified

MOST = 1000
"""Lines that wait at once, and alerts that are known of; beyond it the oldest go."""

LOGGED_ELSEWHERE = frozenset({"RunStarted", "RunRestarted", "RunFinished"})
"""Those that the log has already: it says of every run that it begins and how it ended."""

log = logging.getLogger("trackside")


class LogSink:
    """See `trackside_daemon.alerts.sinks.sink.Sink`."""

    def __init__(self, section: LogSinkSection) -> None:
        self.name = "log"
        self.wants = Wants(section.severity)

    def outbox(self) -> Lines:
        """See `Sink`."""
        return Lines(self.wants)

    def send(self, message: Message) -> None:
        """See `Sink`."""
        for alert, line in zip(message.alerts, message.lines, strict=True):
            log.log(logging.INFO if alert.severity == "info" else logging.WARNING, "%s", line)


class Lines:
    """See `trackside_daemon.alerts.sinks.sink.Outbox`. What fired before a restart was logged by then."""

    def __init__(self, wants: Wants) -> None:
        self.wants = wants
        self.dropped = 0
        self._known: dict[Key, Notified] = {}
        self._lines: deque[tuple[Alert, str]] = deque()

    def __len__(self) -> int:
        return len(self._lines)

    def restore(self, alert: Alert, now: float, *, told: Notified | None) -> None:  # noqa: ARG002  it was logged before all else
        """See `Outbox`."""
        if alert.ended is None and self.wants.has(alert):
            self._known[key(alert)] = said(alert)

    def put(self, alert: Alert, now: float) -> None:  # noqa: ARG002  nothing is waited for
        """See `Outbox`."""
        name, known = key(alert), self._known.pop(key(alert), None)
        news = said(alert)
        if alert.ended is not None:
            if known is not None:
                self._say(
                    alert, f"{alert.alert} is over after {alert.ended - alert.started:.0f} s; it was: {news.summary}"
                )
            return
        if known is not None or self.wants.has(alert):
            self._known[name] = news
            if known is None:
                self._say(alert, f"{alert.alert} ({news.severity}): {news.summary}")
            elif news != known:
                self._say(alert, f"{alert.alert} (now {news.severity}): {news.summary}")
        if len(self._known) > 2 * MOST:
            del self._known[next(iter(self._known))]

    def due(self) -> float | None:
        """See `Outbox`."""
        return 0.0 if self._lines else None

    def take(self, now: float, *, everything: bool = False) -> Message | None:  # noqa: ARG002  all is due at once
        """See `Outbox`."""
        if not self._lines:
            return None
        alerts, lines = zip(*self._lines, strict=True)
        self._lines.clear()
        return Message("", alerts, lines=lines)

    def sent(self, message: Message, now: float) -> list[Alert]:  # noqa: ARG002  the same
        """See `Outbox`."""
        return list({key(alert): alert for alert in message.alerts}.values())

    def failed(self, message: Message, now: float, *, never: bool) -> None:  # noqa: ARG002  the same
        """See `Outbox`."""
        self.dropped += len(message.alerts)

    def _say(self, alert: Alert, line: str) -> None:
        if alert.alert in LOGGED_ELSEWHERE:
            return
        self._lines.append((alert, line))
        if len(self._lines) > MOST:
            self._lines.popleft()
            self.dropped += 1
