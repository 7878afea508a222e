"""Protocols of a sink, which sends messages to one receiver, and of its outbox, which queues alerts for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from trackside_daemon.alerts.active_alert import first_summary
from trackside_daemon.alerts.active_alerts import ONCE
from trackside_daemon.detectors.deaths import ALERTS as DEATHS
from trackside_daemon.detectors.deaths import AT_STEP
from trackside_daemon.http_client.errors import SettingError
from trackside_daemon.model.finding import SEVERITIES, severity_of
from trackside_daemon.model.records import Alert, Notified

SinkError = SettingError
"""A sink is configured wrongly."""


class SinkMessage(NamedTuple):
    """Content of one notification."""

    group: str  # id of the run that the alerts belong to; empty for the machine
    alerts: tuple[Alert, ...]  # new alerts: those that fire, the most severe first, then those that have ended
    others: tuple[Alert, ...] = ()  # alerts of the group that were sent before and still fire, without infos
    lines: tuple[str, ...] = ()  # one text for each of *alerts*, if the outbox writes them


class DaemonInfo(NamedTuple):
    """Facts about this daemon for messages."""

    instance: str  # name of the machine
    url: str = ""  # address of the dashboard, without its token
    runbook: str = ""  # page of runbooks, with a section for each alert; empty for none


class AlertOutbox(Protocol):
    """Bounded queue of alerts for one sink; all times are seconds of the monotonic clock."""

    # Alerts that the sink sends. New settings replace it, and queued alerts that it rejects are not sent.
    filter: SinkFilter
    dropped: int  # number of notifications that were given up: that an alert fires, gets worse or has ended

    def __len__(self) -> int:
        """Return the number of queued alerts."""
        ...

    def restore(self, alert: Alert, now: float, *, sent: Notified | None) -> None:
        """Restore an alert that fired when an earlier daemon ended, or that had ended shortly before; send what is unsent.

        Also called for all firing alerts when the sink gets another filter; alerts that the outbox has do not change.

        Args:
            alert: The alert.
            now: Present time.
            sent: Latest notification of the alert by this sink; None for none.
        """
        ...

    def put(self, alert: Alert, now: float) -> None:
        """Queue a new alert, or the present state of an older one."""
        ...

    def due(self, *, urgent: bool | None = None) -> float | None:
        """Return the time of the next message; None if there is none before the next `put`.

        Args:
            urgent: Consider messages only that must not wait while another one is sent, or only the others.
        """
        ...

    def next_message(self, now: float, *, urgent: bool | None = None, everything: bool = False) -> SinkMessage | None:
        """Return the next message that is due, see `due`; with *everything*, also one that is not due yet."""
        ...

    def sent(self, message: SinkMessage, now: float) -> Sequence[Alert]:
        """Register that a message was sent, and return those of its alerts for which that is new, as they were sent."""
        ...

    def failed(self, message: SinkMessage, now: float, *, never: bool) -> None:
        """Register that a message was not sent, or that its worker has stopped; with *never*, give it up."""
        ...


class Sink(Protocol):
    """Sender of messages to one receiver."""

    name: str  # name on /metrics and in the history
    filter: SinkFilter  # alerts that it sends

    def outbox(self) -> AlertOutbox:
        """Return a new, empty outbox that suits this sink."""
        ...

    def send(self, message: SinkMessage) -> None:
        """Send a message; may block for seconds, and is called in another thread if an earlier call has not returned.

        Raises:
            SendError: The message was not accepted.
        """
        ...


class SinkFilter(NamedTuple):
    """Filter that accepts alerts of at least a *severity*, and *also* some by name; with ``off``, none."""

    severity: str = "warning"
    also: tuple[str, ...] = ()

    def accepts(self, alert: Alert) -> bool:
        """Return True if the sink sends this alert."""
        if self.severity == "off":
            return False
        return severity_rank(alert) >= [*SEVERITIES].index(self.severity) or alert.alert in self.also  # type: ignore[arg-type]

    def accepts_late(self, alert: Alert) -> bool:
        """Return True if the sink sends this alert even after its end: a critical one, or an event."""
        return self.accepts(alert) and (alert.severity == "critical" or alert.alert in {*self.also, *ONCE})


def severity_rank(alert: Alert) -> int:
    """Return the index of the alert's severity, 0 for info; 1 for an unknown one."""
    return SEVERITIES.index(severity_of(alert.severity))


def notification_of(alert: Alert) -> Notified:
    """Return what a notification of the alert contains; a sink notifies again once this changes.

    Further ranks that have the alert are left out, so they cause no new message, nor do rows of a process that has died.
    """
    return compared(alert, Notified(alert.severity, first_summary(alert), alert.ended is not None))


def compared(alert: Alert, sent: Notified) -> Notified:
    """Return a notification without the step of a death, which earlier daemons stored."""
    return sent._replace(summary=AT_STEP.sub("", sent.summary)) if alert.alert in DEATHS else sent
