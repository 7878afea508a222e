"""Outbox that groups alerts by run for human readers: the first message at once, then at most one a minute."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from operator import itemgetter
from typing import Any

from trackside_daemon.alerts.active_alert import page_of, series_labels
from trackside_daemon.alerts.evidence.required import awaits
from trackside_daemon.alerts.sinks.sink import (
    DaemonInfo,
    SinkFilter,
    SinkMessage,
    compared,
    notification_of,
    severity_rank,
)
from trackside_daemon.alerts.test_alert import TEST_ALERT
from trackside_daemon.model.families import alerts
from trackside_daemon.model.families.alerts import CORRELATION
from trackside_daemon.model.records import Alert, AlertKey, Notified
from trackside_daemon.model.text import rfc3339
from trackside_daemon.model.troubles import PREFIX


def labels(alert: Alert, daemon: DaemonInfo) -> dict[str, str]:
    """Return the labels that a Prometheus rule would give the alert, except `job`; empty ones are left out."""
    values = series_labels(alert.alert, alert.severity, alert.labels)
    named = dict(zip(alerts.FIRING.labels, values, strict=True))
    named["alertname"] = PREFIX + named.pop("alert")
    named["instance"] = daemon.instance
    return {name: value for name, value in sorted(named.items()) if value}


def annotation_texts(alert: Alert, daemon: DaemonInfo) -> dict[str, str]:
    """Return the texts of the alert; empty ones are left out."""
    runbook = f"{daemon.runbook}#{alert.alert.lower()}" if daemon.runbook else ""
    texts = {
        "summary": alert.summary,
        "description": alert.description,
        "runbook_url": runbook,
        "dashboard_url": page_of(daemon.url, alert.run),
        "correlation_id": str(alert.evidence.get(CORRELATION, "")),
    }
    return {name: value for name, value in texts.items() if value}


def as_json(alert: Alert, daemon: DaemonInfo, ends: float, more: Mapping[str, str]) -> dict[str, Any]:
    """Return the alert as Alertmanager's API accepts it.

    Args:
        alert: Present state of the alert.
        daemon: This daemon.
        ends: Unix time of its end, or for a firing alert the time at which it expires unless it is resent.
        more: Further labels.
    """
    return {
        "labels": {**labels(alert, daemon), **more},
        "annotations": annotation_texts(alert, daemon),
        "startsAt": rfc3339(alert.started),
        "endsAt": rfc3339(max(ends, alert.started)),
        "generatorURL": daemon.url,
    }


WAIT_SECONDS = 1.0  # seconds for which a message waits for further alerts of the same run
CAUSE_SECONDS = 5.0  # seconds for which it waits for what the evidence adds to the text of an alert

# Least seconds between two messages about a run. A new critical alert does not wait, nor does a warning after infos.
INTERVAL_SECONDS = 60.0

GIVE_UP_SECONDS = 3600.0  # seconds after its end at which an unsent notification is given up
MAX_QUEUED_ALERTS = 1000  # most queued alerts; with more, the oldest of the least severe are given up


@dataclass(slots=True)
class _Entry:
    """One alert."""

    alert: Alert
    sent: Notified | None = None  # latest notification; None for none
    queued: bool = False  # a notification is to be sent
    since: float = 0.0  # time from which it is queued
    ended: float | None = None  # time at which its end was registered; None while it fires
    in_flight: bool = False  # it is in a message that is being sent
    failed: bool = False  # a message with it was not sent

    @property
    def news(self) -> Alert:
        """The alert as the next message has it: that it fires comes first, even if it has ended since."""
        return self.alert if self.sent is not None else replace(self.alert, ended=None)


class GroupOutbox:
    """Outbox, see `trackside_daemon.alerts.sinks.sink.AlertOutbox`, that sends that each alert fires, and then its present state.

    A firing alert is queued until it is sent, also if it ends before. If it has ended and the receiver has not accepted it,
    it is retried only if it is critical or an event, for up to an hour. A silenced alert is not sent, except for its end if
    it was sent before. The end of an info is not sent.
    """

    def __init__(self, filter_: SinkFilter, *, most: int = MAX_QUEUED_ALERTS, wait: float = WAIT_SECONDS) -> None:
        self.filter = filter_
        self.dropped = 0
        self._most = most
        self._wait = wait
        self._entries: dict[AlertKey, _Entry] = {}
        self._due: dict[str, float] = {}
        self._last: dict[tuple[str, bool], float] = {}

    def __len__(self) -> int:
        return sum(entry.queued for entry in self._entries.values())

    def restore(self, alert: Alert, now: float, *, sent: Notified | None) -> None:
        """See `AlertOutbox`."""
        self._update(self._entries.get(alert.key) or _Entry(alert, sent and compared(alert, sent)), now)

    def put(self, alert: Alert, now: float) -> None:
        """See `AlertOutbox`."""
        entry = self._entries.get(alert.key)
        if entry is not None:
            entry.alert = alert
            self._update(entry, now)
        elif alert.ended is None:
            self._update(_Entry(alert), now)

    def due(self, *, urgent: bool | None = None) -> float | None:
        """See `AlertOutbox`. A message with a new critical alert is urgent."""
        return min((at for _, at in self._due_groups(urgent)), default=None)

    def next_message(self, now: float, *, urgent: bool | None = None, everything: bool = False) -> SinkMessage | None:
        """See `AlertOutbox`."""
        self._expire(now)
        self._last = {group: last for group, last in self._last.items() if now - last < INTERVAL_SECONDS}
        for group, at in self._due_groups(urgent):
            if at > now and not everything:
                continue
            del self._due[group]
            members = [entry for entry in self._entries.values() if entry.alert.run == group]
            new = [entry for entry in members if entry.queued and not entry.in_flight]
            if new:
                for entry in new:
                    entry.in_flight = True
                others = [entry.alert for entry in members if not entry.queued and _still_fires(entry)]
                return SinkMessage(group, _sorted([entry.news for entry in new]), _sorted(others))
        return None

    def sent(self, message: SinkMessage, now: float) -> list[Alert]:
        """See `AlertOutbox`."""
        # Every message delays infos, but only one with a warning or worse delays warnings.
        for severe in {False, any(map(_is_severe, message.alerts))}:
            self._last[message.group, severe] = now
        for alert in message.alerts:
            entry = self._entries.get(alert.key)
            if entry is not None:
                entry.in_flight = entry.queued = False
                entry.sent = notification_of(alert)
                self._update(entry, now)
        return list(message.alerts)

    def failed(self, message: SinkMessage, now: float, *, never: bool) -> None:
        """See `AlertOutbox`."""
        for alert in message.alerts:
            entry = self._entries.get(alert.key)
            if entry is None:
                continue
            entry.in_flight, entry.failed = False, True
            if never:
                self._give_up(entry)
            else:
                self._update(entry, now)
        # The worker adds the back-off, so the message is due at once.
        if any(entry.queued and entry.alert.run == message.group for entry in self._entries.values()):
            self._due[message.group] = now

    def _due_groups(self, urgent: bool | None) -> list[tuple[str, float]]:
        """Return the groups with queued alerts, the one that is due first at the front, and when each is due."""
        critical = {
            entry.alert.run
            for entry in self._entries.values()
            if entry.queued and not entry.in_flight and _is_urgent(entry.news)
        }
        groups = [item for item in self._due.items() if urgent in {None, item[0] in critical}]
        return sorted(groups, key=itemgetter(1))

    def _update(self, entry: _Entry, now: float) -> None:
        """Keep an entry as long as a notification may follow, and queue it if there is one."""
        alert = entry.alert
        # The monotonic clock, because the times of the alert are Unix times.
        if alert.ended is not None and entry.ended is None:
            entry.ended = now
        if not entry.in_flight and not self._matters(entry):
            self.dropped += entry.queued and entry.sent is None and not alert.silenced
            self._entries.pop(alert.key, None)
            return
        self._entries[alert.key] = entry
        self._queue(entry, now)
        if len(self) > self._most:
            self._drop()

    def _matters(self, entry: _Entry) -> bool:
        """Return True if a notification of this alert follows now or may follow later."""
        alert, sent = entry.alert, entry.sent
        if sent is not None:
            return alert.ended is None or (alert.severity != "info" and not sent.over)
        if alert.silenced:
            return False
        late = alert.ended is not None and entry.failed
        return self.filter.accepts_late(alert) if late else self.filter.accepts(alert)

    def _queue(self, entry: _Entry, now: float) -> None:
        """Queue a notification if the alert has changed since the last one."""
        alert = entry.news
        if alert.ended is None and (alert.silenced or notification_of(alert) == entry.sent):
            entry.queued = False
            return
        if not entry.queued:
            entry.queued, entry.since = True, now
        last = -inf if _is_urgent(alert) else self._last.get((alert.run, _is_severe(alert)), -inf)
        due = max(now + (CAUSE_SECONDS if awaits(alert.alert, alert.evidence) else self._wait), last + INTERVAL_SECONDS)
        self._due[alert.run] = min(due, self._due.get(alert.run, inf))

    def _expire(self, now: float) -> None:
        """Remove alerts that ended long ago, and those that a new filter rejects."""
        for key, entry in list(self._entries.items()):
            if entry.in_flight:
                continue
            if not self._matters(entry):
                del self._entries[key]
            elif entry.queued and entry.ended is not None and now - entry.ended >= GIVE_UP_SECONDS:
                self._give_up(entry)

    def _give_up(self, entry: _Entry) -> None:
        """Give up a notification; an alert that was sent before stays, so that its end is sent."""
        self.dropped += 1
        if entry.sent is None or entry.ended is not None:
            del self._entries[entry.alert.key]
        else:
            entry.queued = False

    def _drop(self) -> None:
        queued = [entry for entry in self._entries.values() if entry.queued and not entry.in_flight]
        self._give_up(min(queued, key=lambda entry: (severity_rank(entry.alert), entry.since)))


def _is_urgent(alert: Alert) -> bool:
    """Return True for an alert that waits for no other: critical, or a test, because a person waits for it."""
    return alert.ended is None and (alert.severity == "critical" or alert.alert == TEST_ALERT)


def _is_severe(alert: Alert) -> bool:
    """Return True if warnings wait for `INTERVAL_SECONDS` after this alert was sent."""
    return severity_rank(alert) > 0 and alert.alert != TEST_ALERT


def _still_fires(entry: _Entry) -> bool:
    """Return True if the next message of the group lists this alert as still firing."""
    return entry.sent is not None and severity_rank(entry.alert) > 0 and not entry.alert.silenced


def _sorted(alerts: list[Alert]) -> tuple[Alert, ...]:
    """Return the alerts that fire, the most severe first, then those that have ended."""
    return tuple(sorted(alerts, key=lambda alert: (alert.ended is not None, -severity_rank(alert), alert.started)))
