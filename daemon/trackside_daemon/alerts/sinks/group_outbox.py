"""The outbox of sinks whose messages people read: one message a run at first, and one a minute afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from trackside_daemon.alerts.sinks.sink import Message
from trackside_daemon.alerts.sinks.sink_filter import Key, key, rank, said
from trackside_daemon.alerts.test_alert import TEST_ALERT

if TYPE_CHECKING:
    from trackside_daemon.alerts.sinks.sink_filter import Wants
    from trackside_daemon.model.records import Alert, Notified

WAIT_SECONDS = 1.0
"""Alerts of a run that begin within it are one message."""

INTERVAL_SECONDS = 60.0
"""Between two messages about a run. A new critical alert does not wait for it, nor does a warning that follows infos."""

GIVE_UP_SECONDS = 3600.0
"""What has been over for so long, and could not be told, is no news any more."""

MOST = 1000
"""Alerts that wait at once; beyond it the least severe go first, and of those the oldest."""


@dataclass(slots=True)
class _Entry:
    """One alert.

    Attributes:
        told: What people were told of it last; None for nothing yet.
        waits: There is something to tell.
        since: Since when it waits.
        over: Since when it is known to have ended; None while it fires.
        flies: It is in a message that is being sent.
    """

    alert: Alert
    told: Notified | None = None
    waits: bool = False
    since: float = 0.0
    over: float | None = None
    flies: bool = False


class Grouping:
    """See `trackside_daemon.alerts.sinks.sink.Outbox`. The alert as it is newest at sending is what is sent.

    What fires waits until it is told. What resolves before that is told if it is critical or happened once, for an hour. What is
    silenced is not told, but the end of what was told is. That an info is over is no message.
    """

    def __init__(self, wants: Wants, *, most: int = MOST) -> None:
        self.wants = wants
        self.dropped = 0
        self._most = most
        self._entries: dict[Key, _Entry] = {}
        self._due: dict[str, float] = {}
        self._last: dict[tuple[str, bool], float] = {}

    def __len__(self) -> int:
        return sum(entry.waits for entry in self._entries.values())

    def restore(self, alert: Alert, now: float, *, told: Notified | None) -> None:
        """See `Outbox`."""
        self._renew(self._entries.get(key(alert)) or _Entry(alert, told), now)

    def put(self, alert: Alert, now: float) -> None:
        """See `Outbox`."""
        entry = self._entries.get(key(alert))
        if entry is not None:
            entry.alert = alert
            self._renew(entry, now)
        elif alert.ended is None:
            self._renew(_Entry(alert), now)

    def due(self) -> float | None:
        """See `Outbox`."""
        return min(self._due.values(), default=None)

    def take(self, now: float, *, everything: bool = False) -> Message | None:
        """See `Outbox`."""
        self._forget(now)
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
                known = [entry.alert for entry in mine if not entry.waits and _is_known(entry)]
                return Message(group, _sorted([entry.alert for entry in news]), _sorted(known))
        return None

    def sent(self, message: Message, now: float) -> list[Alert]:
        """See `Outbox`."""
        for grave in {False, any(map(_is_grave, message.alerts))}:
            self._last[message.group, grave] = now
        for alert in message.alerts:
            entry = self._entries.get(key(alert))
            if entry is not None:
                entry.flies = entry.waits = False
                entry.told = said(alert)
                self._renew(entry, now)
        return list(message.alerts)

    def failed(self, message: Message, now: float, *, never: bool) -> None:
        """See `Outbox`."""
        for alert in message.alerts:
            entry = self._entries.get(key(alert))
            if entry is None:
                continue
            entry.flies = False
            if never:
                self._give_up(entry)
            else:
                self._renew(entry, now)
        if any(entry.waits and entry.alert.run == message.group for entry in self._entries.values()):
            self._due[message.group] = now

    def _renew(self, entry: _Entry, now: float) -> None:
        """Keep it as long as there is or may be something to tell of it, and have that told."""
        alert = entry.alert
        if alert.ended is not None and entry.over is None:
            entry.over = now
        if not entry.flies and not self._matters(entry):
            self.dropped += entry.waits and entry.told is None and not alert.silenced
            self._entries.pop(key(alert), None)
            return
        self._entries[key(alert)] = entry
        self._await(entry, now)
        if len(self) > self._most:
            self._drop()

    def _matters(self, entry: _Entry) -> bool:
        """Whether people are to hear of it, now or later."""
        alert, told = entry.alert, entry.told
        if told is not None:
            return alert.ended is None or (alert.severity != "info" and not told.over)
        if alert.silenced:
            return False
        return self.wants.has(alert) if alert.ended is None else self.wants.has_late(alert)

    def _await(self, entry: _Entry, now: float) -> None:
        """Have it told if there is something new."""
        alert = entry.alert
        if alert.ended is None and (alert.silenced or said(alert) == entry.told):
            entry.waits = False
            return
        if not entry.waits:
            entry.waits, entry.since = True, now
        urgent = alert.ended is None and (alert.severity == "critical" or alert.alert == TEST_ALERT)
        last = -inf if urgent else self._last.get((alert.run, _is_grave(alert)), -inf)
        due = max(now + WAIT_SECONDS, last + INTERVAL_SECONDS)
        self._due[alert.run] = min(due, self._due.get(alert.run, inf))

    def _forget(self, now: float) -> None:
        """What has been over for long, and what is not wanted any more by other settings."""
        for name, entry in list(self._entries.items()):
            if entry.flies:
                continue
            if not self._matters(entry):
                del self._entries[name]
            elif entry.waits and entry.over is not None and now - entry.over >= GIVE_UP_SECONDS:
                self._give_up(entry)

    def _give_up(self, entry: _Entry) -> None:
        """What waits is told no more. What people know of stays, so that they hear of its end."""
        self.dropped += 1
        if entry.told is None or entry.over is not None:
            del self._entries[key(entry.alert)]
        else:
            entry.waits = False

    def _drop(self) -> None:
        waiting = [entry for entry in self._entries.values() if entry.waits and not entry.flies]
        self._give_up(min(waiting, key=lambda entry: (rank(entry.alert), entry.since)))


def _is_grave(alert: Alert) -> bool:
    """Whether warnings wait after it."""
    return rank(alert) > 0 and alert.alert != TEST_ALERT


def _is_known(entry: _Entry) -> bool:
    """Whether people know that it fires, and are to be told so with the next message of its group."""
    return entry.told is not None and rank(entry.alert) > 0 and not entry.alert.silenced


def _sorted(alerts: list[Alert]) -> tuple[Alert, ...]:
    """Those that fire, the worst first, then those that are over."""
    return tuple(sorted(alerts, key=lambda alert: (alert.ended is not None, -rank(alert), alert.started)))
