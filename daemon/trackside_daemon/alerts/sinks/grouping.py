"""The outbox of sinks whose messages people read: one message a run at first, and one a minute afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from trackside_daemon.alerts.sinks.sink import Message
from trackside_daemon.alerts.sinks.wants import Key, Said, key, rank, said

if TYPE_CHECKING:
    from trackside_daemon.alerts.sinks.wants import Wants
    from trackside_daemon.record import Alert

WAIT_SECONDS = 1.0
"""Alerts of a run that begin within it are one message."""

INTERVAL_SECONDS = 60.0
"""Between two messages about a run; a new critical alert does not wait for it."""

GIVE_UP_SECONDS = 3600.0
"""What could not be told for so long is no news any more."""

MOST = 1000
"""Alerts that wait at once; beyond it the least severe go first, and of those the oldest."""


@dataclass(slots=True)
class _Entry:
    """One alert.

    Attributes:
        told: What people were told of it last; None for nothing yet.
        waits: There is something to tell.
        since: Since when it waits.
        flies: It is in a message that is being sent.
    """

    alert: Alert
    told: Said | None = None
    waits: bool = False
    since: float = 0.0
    flies: bool = False


class Grouping:
    """See `trackside_daemon.alerts.sinks.sink.Outbox`. The alert as it is newest at sending is what is sent.

    What resolves before it was told, and what is silenced, is not told. That an info is over is no message.
    """

    def __init__(self, wants: Wants, *, most: int = MOST) -> None:
        self.wants = wants
        self.dropped = 0
        self._most = most
        self._entries: dict[Key, _Entry] = {}
        self._due: dict[str, float] = {}
        self._last: dict[str, float] = {}

    def __len__(self) -> int:
        return sum(entry.waits for entry in self._entries.values())

    def restore(self, alert: Alert, now: float, *, told: bool) -> None:
        """See `Outbox`."""
        if told and not alert.silenced:
            self._entries[key(alert)] = _Entry(alert, said(alert))
        else:
            self.put(alert, now)

    def put(self, alert: Alert, now: float) -> None:
        """See `Outbox`."""
        name = key(alert)
        entry = self._entries.get(name)
        if alert.silenced:
            self._entries.pop(name, None)
            return
        if entry is None:
            if alert.ended is not None or not self.wants.has(alert):
                return
            entry = self._entries[name] = _Entry(alert)
        entry.alert = alert
        if alert.ended is not None and not entry.flies and (entry.told is None or alert.severity == "info"):
            self.dropped += entry.told is None
            del self._entries[name]
            return
        self._await(entry, now)
        if len(self) > self._most:
            self._drop()

    def due(self) -> float | None:
        """See `Outbox`."""
        return min(self._due.values(), default=None)

    def take(self, now: float, *, everything: bool = False) -> Message | None:
        """See `Outbox`."""
        self._give_up(now)
        self._last = {group: last for group, last in self._last.items() if now - last < INTERVAL_SECONDS}
        for group in sorted(self._due, key=self._due.__getitem__):
            if not everything and self._due[group] > now:
                return None
            del self._due[group]
            mine = [entry for entry in self._entries.values() if entry.alert.run == group]
            news = [entry for entry in mine if entry.waits and not entry.flies]
            if news:
                for entry in news:
                    entry.flies = True
                known = [entry.alert for entry in mine if not entry.waits]
                return Message(group, _sorted([entry.alert for entry in news]), _sorted(known))
        return None

    def sent(self, message: Message, now: float) -> list[Alert]:
        """See `Outbox`."""
        first = []
        self._last[message.group] = now
        for alert in message.alerts:
            entry = self._entries.get(key(alert))
            if alert.ended is None and (entry is None or entry.told is None):
                first.append(alert)
            if entry is None:
                continue
            entry.flies = entry.waits = False
            entry.told = said(alert)
            if alert.ended is not None or (entry.alert.ended is not None and entry.alert.severity == "info"):
                del self._entries[key(alert)]
            else:
                self._await(entry, now)
        return first

    def failed(self, message: Message, now: float, *, never: bool) -> None:
        """See `Outbox`."""
        for alert in message.alerts:
            entry = self._entries.get(key(alert))
            if entry is None:
                continue
            entry.flies = False
            if never or (entry.alert.ended is not None and entry.told is None):
                self._forget(entry)
        if any(entry.waits and entry.alert.run == message.group for entry in self._entries.values()):
            self._due[message.group] = now

    def _await(self, entry: _Entry, now: float) -> None:
        """Have it told if there is something new."""
        alert = entry.alert
        if alert.ended is None and said(alert) == entry.told:
            entry.waits = False
            return
        if not entry.waits:
            entry.waits, entry.since = True, now
        urgent = alert.ended is None and alert.severity == "critical"
        last = -inf if urgent else self._last.get(alert.run, -inf)
        due = max(now + WAIT_SECONDS, last + INTERVAL_SECONDS)
        self._due[alert.run] = min(due, self._due.get(alert.run, inf))

    def _give_up(self, now: float) -> None:
        late = [one for one in self._entries.values() if one.waits and now - one.since >= GIVE_UP_SECONDS]
        for entry in late:
            self._forget(entry)

    def _forget(self, entry: _Entry) -> None:
        """What waits is told no more. What people know of stays, so that they hear of its end."""
        if entry.told is None or entry.alert.ended is not None:
            self.dropped += entry.told is None
            del self._entries[key(entry.alert)]
        else:
            entry.waits, entry.told = False, said(entry.alert)

    def _drop(self) -> None:
        waiting = [entry for entry in self._entries.values() if entry.waits and not entry.flies]
        self._forget(min(waiting, key=lambda entry: (rank(entry.alert), entry.since)))


def _sorted(alerts: list[Alert]) -> tuple[Alert, ...]:
    """Those that fire, the worst first, then those that are over."""
    return tuple(sorted(alerts, key=lambda alert: (alert.ended is not None, -rank(alert), alert.started)))
