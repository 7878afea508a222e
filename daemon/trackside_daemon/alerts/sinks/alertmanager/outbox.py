"""The outbox of an Alertmanager: what fires is said again and again, and what is over for some minutes."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trackside_daemon.alerts import families
from trackside_daemon.alerts.sinks.sink import Message
from trackside_daemon.alerts.sinks.sink_filter import Key, key, said
from trackside_daemon.model.finding import SEVERITIES

if TYPE_CHECKING:
    from collections.abc import Callable

    from trackside_daemon.alerts.sinks.sink_filter import Wants
    from trackside_daemon.model.records import Alert, Notified

RESEND_SECONDS = 60.0
OVER_SECONDS = 300.0
"""What is over is said for so long: an Alertmanager that was away hears of it too."""

MOST = 2000
"""Alerts, firing and over of late."""


@dataclass(slots=True)
class _Entry:
    """An alert of one severity, which is a label: one that gets worse is another, and the former is over.

    Attributes:
        waits: It has not been said as it is now.
        told: What Alertmanager was told last, as the history has it; None for nothing yet.
        until: When it is forgotten, of one that is over.
    """

    alert: Alert
    waits: bool = True
    told: Notified | None = None
    until: float | None = None


class Standing:
    """See `trackside_daemon.alerts.sinks.sink.Outbox`. What is silenced is over for an Alertmanager.

    Args:
        wants: Of which alerts it tells.
        wall: Unix time, in seconds.
    """

    def __init__(self, wants: Wants, wall: Callable[[], float] = time.time) -> None:
        self.wants = wants
        self.dropped = 0
        self._wall = wall
        self._entries: dict[tuple[Key, str], _Entry] = {}
        self._due: float | None = None
        self._resend = 0.0

    def __len__(self) -> int:
        return sum(entry.waits for entry in self._entries.values())

    def restore(self, alert: Alert, now: float, *, told: Notified | None) -> None:
        """See `Outbox`. What fires is said at once in any case: before a restart it was, with the same start and labels."""
        if alert.ended is None:
            if (key(alert), alert.severity) in self._entries:
                return
            self.put(alert, now)
            entry = self._entries.get((key(alert), alert.severity))
            if entry is not None:
                entry.told = told
        elif told is not None and not told.over:
            known = replace(alert, severity=told.severity)
            self._entries[key(alert), told.severity] = _Entry(known, told=told, until=now + OVER_SECONDS)
            self._due = now

    def put(self, alert: Alert, now: float) -> None:
        """See `Outbox`."""
        name = (key(alert), alert.severity)
        over = alert.ended is not None or alert.silenced
        for severity in SEVERITIES:
            if over or severity != alert.severity:
                self._end((name[0], severity), alert, now)
        if not over and (name in self._entries or self.wants.has(alert)):
            entry = self._entries.setdefault(name, _Entry(alert))
            entry.alert, entry.waits, entry.until = alert, True, None
            self._bound()
        if len(self):
            self._due = now

    def due(self) -> float | None:
        """See `Outbox`."""
        if self._due is not None:
            return self._due
        return self._resend if self._entries else None

    def take(self, now: float, *, everything: bool = False) -> Message | None:
        """See `Outbox`."""
        self._forget(now)
        again = now >= self._resend and not everything
        chosen = [entry for entry in self._entries.values() if again or entry.waits]
        self._due = None
        if again:
            self._resend = now + RESEND_SECONDS
        for entry in chosen:
            entry.waits = False
        return Message("", tuple(entry.alert for entry in chosen)) if chosen else None

    def sent(self, message: Message, now: float) -> list[Alert]:  # noqa: ARG002  what is due is known
        """See `Outbox`."""
        news = []
        for alert in message.alerts:
            entry = self._entries.get((key(alert), alert.severity))
            if entry is None or entry.told == said(alert):
                continue
            entry.told = said(alert)
            if entry.until is None or not self._fires(key(alert)):
                news.append(alert)
        return news

    def failed(self, message: Message, now: float, *, never: bool) -> None:
        """See `Outbox`. What is refused is said again with the rest, once a minute."""
        for alert in message.alerts:
            name = (key(alert), alert.severity)
            entry = self._entries.get(name)
            if entry is not None and not never:
                entry.waits = True
                self._due = now

    def _fires(self, name: Key) -> bool:
        """Whether it fires, with whatever severity."""
        entries = (self._entries.get((name, severity)) for severity in SEVERITIES)
        return any(entry is not None and entry.until is None for entry in entries)

    def _forget(self, now: float) -> None:
        """Of what is over, that which has been for long or whose labels fire anew, as those of a run started again do.

        And what was never said, and is not wanted any more by other settings.

        Alertmanager would take the end of the one for the end of the other.
        """
        fires = {_labels(entry.alert) for entry in self._entries.values() if entry.until is None}
        for name, entry in list(self._entries.items()):
            if entry.until is not None and (entry.until <= now or _labels(entry.alert) in fires):
                self.dropped += entry.told is None
                del self._entries[name]
            elif entry.told is None and not self.wants.has(entry.alert):
                del self._entries[name]

    def _end(self, name: tuple[Key, str], alert: Alert, now: float) -> None:
        entry = self._entries.get(name)
        if entry is not None and entry.until is None:
            entry.alert = replace(entry.alert, ended=alert.ended if alert.ended is not None else self._wall())
            entry.waits, entry.until = True, now + OVER_SECONDS

    def _bound(self) -> None:
        """What is over gives way first, then the oldest."""
        if len(self._entries) > MOST:
            over = (name for name, entry in self._entries.items() if entry.until is not None)
            gone = self._entries.pop(next(over, next(iter(self._entries))))
            self.dropped += gone.told is None


def _labels(alert: Alert) -> tuple[str, ...]:
    """By which Alertmanager tells alerts apart."""
    return families.series_labels(alert.alert, alert.severity, alert.labels)
