"""The outbox of an Alertmanager: what fires is said again and again, and what is over for some minutes."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trackside_daemon.alerts.sinks.sink import Message
from trackside_daemon.alerts.sinks.wants import Key, key

if TYPE_CHECKING:
    from collections.abc import Callable

    from trackside_daemon.alerts.sinks.wants import Wants
    from trackside_daemon.record import Alert

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
        told: Alertmanager knows of it.
        until: When it is forgotten, of one that is over.
    """

    alert: Alert
    waits: bool = True
    told: bool = False
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

    def restore(self, alert: Alert, now: float, *, told: bool) -> None:
        """See `Outbox`. It is said at once in any case: before a restart it was, with the same start and labels."""
        self.put(alert, now)
        entry = self._entries.get((key(alert), alert.severity))
        if entry is not None:
            entry.told = told

    def put(self, alert: Alert, now: float) -> None:
        """See `Outbox`."""
        name = (key(alert), alert.severity)
        over = alert.ended is not None or alert.silenced
        for severity in ("info", "warning", "critical"):
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
        self._entries = {
            name: entry for name, entry in self._entries.items() if entry.until is None or entry.until > now
        }
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
        first = []
        for alert in message.alerts:
            entry = self._entries.get((key(alert), alert.severity))
            if entry is not None and not entry.told and alert.ended is None:
                entry.told = True
                first.append(alert)
        return first

    def failed(self, message: Message, now: float, *, never: bool) -> None:
        """See `Outbox`. What is refused is said again with the rest, once a minute."""
        for alert in message.alerts:
            name = (key(alert), alert.severity)
            entry = self._entries.get(name)
            if entry is not None and not never:
                entry.waits = True
                self._due = now

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
            self.dropped += not gone.told
