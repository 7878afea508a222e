"""Sink for an Alertmanager: sends alerts to its API v2, as Prometheus does."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from trackside_daemon.alerts.active_alert import MIN_FIRING_SECONDS, series_labels
from trackside_daemon.alerts.sinks.alertmanager.settings import AlertmanagerSection
from trackside_daemon.alerts.sinks.group_outbox import GIVE_UP_SECONDS, as_json
from trackside_daemon.alerts.sinks.sink import DaemonInfo, SinkError, SinkFilter, SinkMessage, notification_of
from trackside_daemon.http_client import http_request
from trackside_daemon.http_client.errors import SendError
from trackside_daemon.model.finding import SEVERITIES
from trackside_daemon.model.records import Alert, AlertKey, Notified

RESEND_SECONDS = 60.0  # seconds between two messages with all alerts

# Seconds for which an ended alert is resent, so that an Alertmanager that was down receives the end too.
OVER_SECONDS = 300.0

MAX_ALERTS = 2000  # most alerts, including those that ended recently
ENDS_SECONDS = 300.0  # seconds after which Alertmanager ends an alert that is not resent

SETTING = "alerts.sinks.alertmanager"


@dataclass(slots=True)
class _Entry:
    """Alert of one severity.

    The severity is a label, so an alert that gets worse is a new one for Alertmanager, and the former one ends.
    """

    alert: Alert  # present state. For Alertmanager it fires until `until` is set, even if it has ended
    queued: bool = True  # the present state was not sent yet
    sent: Notified | None = None  # latest notification, as the history has it; None for none
    # Time before which its end is not sent: Alertmanager notifies of no alert that ends within `group_wait`.
    fires_until: float = 0.0
    ended: float | None = None  # time at which its end was registered; None while it fires
    until: float | None = None  # time at which an ended alert is dropped; None while it fires for Alertmanager

    @property
    def news(self) -> Alert:
        """The alert as the next message has it."""
        return replace(self.alert, ended=None) if self.until is None else self.alert

    @property
    def waits(self) -> bool:
        """True if it has ended, and Alertmanager is to see it fire before."""
        return self.until is None and self.ended is not None


class AlertmanagerOutbox:
    """See `trackside_daemon.alerts.sinks.sink.AlertOutbox`. A silenced alert ends for Alertmanager.

    Args:
        filter_: Alerts that are sent.
        wall: Unix time, in seconds.
    """

    def __init__(self, filter_: SinkFilter, wall: Callable[[], float] = time.time) -> None:
        self.filter = filter_
        self.dropped = 0
        self._wall = wall
        self._entries: dict[tuple[AlertKey, str], _Entry] = {}
        self._due: float | None = None
        self._resend = 0.0

    def __len__(self) -> int:
        return sum(entry.queued for entry in self._entries.values())

    def restore(self, alert: Alert, now: float, *, sent: Notified | None) -> None:
        """See `AlertOutbox`. A firing alert is always sent at once: it has the same start and labels as before the restart."""
        if alert.ended is None:
            if (alert.key, alert.severity) in self._entries:
                return
            self.put(alert, now)
            entry = self._entries.get((alert.key, alert.severity))
            if entry is not None:
                entry.sent = sent
                if sent is not None:
                    entry.fires_until = now + MIN_FIRING_SECONDS - (self._wall() - alert.started)
        elif sent is None or not sent.over:
            severity = alert.severity if sent is None else sent.severity
            entry = _Entry(replace(alert, severity=severity), sent=sent, ended=now)
            entry.until = None if sent is None else now + OVER_SECONDS
            self._entries[alert.key, severity] = entry
            self._due = now

    def put(self, alert: Alert, now: float) -> None:
        """See `AlertOutbox`."""
        name = (alert.key, alert.severity)
        over = alert.ended is not None or alert.silenced
        # An alert that got worse ends with its former severity.
        for severity in SEVERITIES:
            if over or severity != alert.severity:
                held = severity == alert.severity and not alert.silenced
                self._end((name[0], severity), alert, now, held=held)
        if not over and (name in self._entries or self.filter.accepts(alert)):
            entry = self._entries.setdefault(name, _Entry(alert))
            entry.alert, entry.queued, entry.ended, entry.until = alert, True, None, None
            self._drop_excess()
        if len(self):
            self._due = now

    def due(self, *, urgent: bool | None = None) -> float | None:
        """See `AlertOutbox`. No message is urgent, because one has all alerts."""
        if urgent:
            return None
        if self._due is not None:
            return self._due
        ends = (entry.fires_until for entry in self._entries.values() if entry.waits and entry.sent is not None)
        return min([self._resend, *ends]) if self._entries else None

    def next_message(self, now: float, *, urgent: bool | None = None, everything: bool = False) -> SinkMessage | None:
        """See `AlertOutbox`."""
        if urgent:
            return None
        for entry in self._entries.values():
            if entry.waits and entry.sent is not None and now >= entry.fires_until:
                entry.queued, entry.until = True, now + OVER_SECONDS
        self._expire(now)
        # A stopping daemon sends only what is new.
        resend = now >= self._resend and not everything
        chosen = [entry for entry in self._entries.values() if resend or entry.queued]
        self._due = None
        if resend:
            self._resend = now + RESEND_SECONDS
        for entry in chosen:
            entry.queued = False
        return SinkMessage("", tuple(entry.news for entry in chosen)) if chosen else None

    def sent(self, message: SinkMessage, now: float) -> list[Alert]:
        """See `AlertOutbox`."""
        new = []
        for alert in message.alerts:
            entry = self._entries.get((alert.key, alert.severity))
            if entry is None or entry.sent == notification_of(alert):
                continue
            if entry.sent is None:
                entry.fires_until = now + MIN_FIRING_SECONDS
            entry.sent = notification_of(alert)
            # The end of a former severity is not the end of the alert.
            if entry.until is None or not self._fires(alert.key):
                new.append(alert)
        return new

    def failed(self, message: SinkMessage, now: float, *, never: bool) -> None:
        """See `AlertOutbox`. A rejected alert is resent with the others, once a minute."""
        for alert in message.alerts:
            entry = self._entries.get((alert.key, alert.severity))
            if entry is not None and not never:
                entry.queued = True
                self._due = now

    def _fires(self, key: AlertKey) -> bool:
        """Return True if an alert fires with any severity."""
        entries = (self._entries.get((key, severity)) for severity in SEVERITIES)
        return any(entry is not None and entry.until is None for entry in entries)

    def _expire(self, now: float) -> None:
        """Drop alerts that ended long ago, and those that were never sent and that a new filter rejects.

        An ended alert is also dropped if an alert with the same labels fires, as after a restart of its run: Alertmanager
        would apply the end of the one to the other.
        """
        firing = {_labels(entry.alert) for entry in self._entries.values() if entry.ended is None}
        for name, entry in list(self._entries.items()):
            until = entry.until
            if entry.ended is not None and entry.waits and entry.sent is None:
                until = entry.ended + (GIVE_UP_SECONDS if self.filter.accepts_late(entry.alert) else OVER_SECONDS)
            if (until is not None and until <= now) or (entry.ended is not None and _labels(entry.alert) in firing):
                self.dropped += entry.sent is None
                del self._entries[name]
            elif entry.sent is None and not self.filter.accepts(entry.alert):
                del self._entries[name]

    def _end(self, name: tuple[AlertKey, str], alert: Alert, now: float, *, held: bool) -> None:
        """End an alert; one that is *held* only after Alertmanager has seen it fire for some time."""
        entry = self._entries.get(name)
        if entry is None or entry.until is not None:
            return
        entry.alert = replace(entry.alert, ended=alert.ended if alert.ended is not None else self._wall())
        entry.ended = entry.ended if entry.ended is not None else now
        if not held or (entry.sent is not None and now >= entry.fires_until):
            entry.queued, entry.until = True, now + OVER_SECONDS

    def _drop_excess(self) -> None:
        """Drop an ended alert, otherwise the oldest, if there are too many."""
        if len(self._entries) > MAX_ALERTS:
            ended = (name for name, entry in self._entries.items() if entry.ended is not None)
            dropped = self._entries.pop(next(ended, next(iter(self._entries))))
            self.dropped += dropped.sent is None


def _labels(alert: Alert) -> tuple[str, ...]:
    """Return the labels by which Alertmanager identifies the alert."""
    return series_labels(alert.alert, alert.severity, alert.labels)


class AlertmanagerSink:
    """Sink for one Alertmanager; each peer of a cluster is a separate sink with separate retries.

    Raises:
        SinkError: A file of the settings cannot be used.
    """

    def __init__(self, section: AlertmanagerSection, url: str, daemon: DaemonInfo) -> None:
        several = len(section.urls) > 1
        self.name = (
            f"alertmanager:{http_request.without_secrets(url).partition('//')[2]}" if several else "alertmanager"
        )
        self.filter = SinkFilter(section.severity, section.also)
        self._section = section
        self._url = url.rstrip("/") + "/api/v2/alerts"
        self._daemon = daemon
        self._labels = {name: value for name, _, value in (label.partition("=") for label in section.labels)}
        self._trust = http_request.tls_context(section.ca_file, f"{SETTING}.ca-file")
        # Check the files now, so that a wrong path is an error at the start and not at the first alert.
        self._headers()

    def outbox(self) -> AlertmanagerOutbox:
        """See `Sink`."""
        return AlertmanagerOutbox(self.filter)

    def send(self, message: SinkMessage) -> None:
        """See `Sink`."""
        try:
            headers = self._headers()
        except SinkError as error:
            raise SendError(str(error), "later") from None
        http_request.post(self._url, json.dumps(self._body(message)).encode(), headers, self._trust)

    def _body(self, message: SinkMessage) -> list[dict[str, Any]]:
        ends = time.time() + ENDS_SECONDS
        return [
            as_json(alert, self._daemon, ends if alert.ended is None else alert.ended, self._labels)
            for alert in message.alerts
        ]

    def _headers(self) -> dict[str, str]:
        """Return the headers; secrets are read again each time, because they may change while the daemon runs."""
        section = self._section
        if section.bearer_file:
            return {"Authorization": http_request.bearer_header(section.bearer_file, f"{SETTING}.bearer-file")}
        if section.username:
            setting = f"{SETTING}.password-file"
            password = http_request.read_secret_line(section.password_file, setting) if section.password_file else ""
            return {"Authorization": http_request.basic_header(section.username, password)}
        return {}


def alertmanager_sinks(section: AlertmanagerSection, daemon: DaemonInfo) -> list[AlertmanagerSink]:
    """Return a sink for each configured URL.

    Raises:
        SinkError: See `AlertmanagerSink`.
    """
    return [AlertmanagerSink(section, url, daemon) for url in dict.fromkeys(section.urls)]
