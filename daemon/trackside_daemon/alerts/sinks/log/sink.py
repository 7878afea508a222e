"""Sink that logs one line when an alert begins, gets worse or ends; at once, and for silenced alerts too."""

from __future__ import annotations

import logging
from collections import deque

from trackside_daemon.alerts.active_alert import first_summary
from trackside_daemon.alerts.sinks.log.settings import LogSinkSection
from trackside_daemon.alerts.sinks.sink import SinkFilter, SinkMessage, compared, notification_of
from trackside_daemon.model.families.alerts import CORRELATION
from trackside_daemon.model.log_fields import log_fields
from trackside_daemon.model.records import Alert, AlertKey, Notified
from trackside_daemon.model.text import duration

MAX_QUEUED_LINES = 1000  # most queued lines, beyond which the oldest are dropped; twice as many alerts are remembered

# Alerts that this sink skips, because the daemon logs the begin and the end of every run anyway.
LOGGED_ELSEWHERE = frozenset({"RunStarted", "RunRestarted", "RunFinished"})

# The alert whose summary is a text of a training. The run comes before it, or it could imitate an alert of another run.
BY_TRAINING = "UserAlert"

LEVELS = {"info": logging.INFO, "critical": logging.ERROR}  # levels of alerts that begin, by severity

log = logging.getLogger("trackside")


class LogSink:
    """See `trackside_daemon.alerts.sinks.sink.Sink`."""

    def __init__(self, section: LogSinkSection) -> None:
        self.name = "log"
        self.filter = SinkFilter(section.severity)

    def outbox(self) -> LogOutbox:
        """See `Sink`."""
        return LogOutbox(self.filter)

    def send(self, message: SinkMessage) -> None:
        """See `Sink`."""
        for alert, line in zip(message.alerts, message.lines, strict=True):
            level = LEVELS.get(alert.severity, logging.WARNING)
            labels, correlation = alert.labels, str(alert.evidence.get(CORRELATION, ""))
            fields = log_fields(alert.run, labels.get("run", ""), labels.get("rank"), alert.fingerprint, correlation)
            log.log(level if alert.ended is None else min(level, logging.WARNING), "%s", line, extra=fields)


class LogOutbox:
    """See `trackside_daemon.alerts.sinks.sink.AlertOutbox`. Alerts that the earlier daemon logged are not logged again."""

    def __init__(self, filter_: SinkFilter) -> None:
        self.filter = filter_
        self.dropped = 0
        self._logged: dict[AlertKey, Notified] = {}
        self._lines: deque[tuple[Alert, str]] = deque()

    def __len__(self) -> int:
        return len(self._lines)

    def restore(self, alert: Alert, now: float, *, sent: Notified | None) -> None:
        """See `AlertOutbox`. What ended before is in the log of the earlier daemon, or not worth a line any more."""
        if alert.ended is None and sent is not None and self.filter.accepts(alert):
            self._logged[alert.key] = compared(alert, sent)
        self.put(alert, now)

    def put(self, alert: Alert, now: float) -> None:  # noqa: ARG002  every line is due at once
        """See `AlertOutbox`."""
        key = alert.key
        logged = self._logged.pop(key, None)
        notification = notification_of(alert)
        by = f"run {alert.labels.get('run', '')}: " if alert.alert == BY_TRAINING else ""
        text = f"{by}{first_summary(alert)}"
        if alert.ended is not None:
            if logged is not None:
                seconds = alert.ended - alert.started
                self._add(alert, f"{alert.alert} ended after {duration(round(seconds))}: {text}")
            return
        if logged is not None or self.filter.accepts(alert):
            self._logged[key] = notification
            if logged is None:
                self._add(alert, f"{alert.alert} ({notification.severity}): {text}")
            elif notification != logged:
                self._add(alert, f"{alert.alert} (now {notification.severity}): {text}")
        # An alert whose end never arrives must not stay for ever.
        if len(self._logged) > 2 * MAX_QUEUED_LINES:
            del self._logged[next(iter(self._logged))]

    def due(self, *, urgent: bool | None = None) -> float | None:
        """See `AlertOutbox`. No message is urgent, because one has all lines, and all are due at once."""
        return 0.0 if self._lines and not urgent else None

    def next_message(self, now: float, *, urgent: bool | None = None, everything: bool = False) -> SinkMessage | None:  # noqa: ARG002  see `due`
        """See `AlertOutbox`."""
        if self.due(urgent=urgent) is None:
            return None
        alerts, lines = zip(*self._lines, strict=True)
        self._lines.clear()
        return SinkMessage("", alerts, lines=lines)

    def sent(self, message: SinkMessage, now: float) -> list[Alert]:  # noqa: ARG002  of the protocol
        """See `AlertOutbox`."""
        return list({alert.key: alert for alert in message.alerts}.values())

    def failed(self, message: SinkMessage, now: float, *, never: bool) -> None:  # noqa: ARG002  of the protocol
        """See `AlertOutbox`."""
        self.dropped += len(message.alerts)

    def _add(self, alert: Alert, line: str) -> None:
        if alert.alert in LOGGED_ELSEWHERE:
            return
        self._lines.append((alert, line))
        if len(self._lines) > MAX_QUEUED_LINES:
            self._lines.popleft()
            self.dropped += 1
