"""What fires: the only one that decides so, of all that detectors, watchers and rules say."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

from trackside_daemon.alerts.causes import Causes, folded, precedence
from trackside_daemon.alerts.entry import Entry, restored, where
from trackside_daemon.alerts.families import BEGUN, EXCESS, FIRING, labels
from trackside_daemon.alerts.off import Off
from trackside_daemon.metric import Batch, Sample

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trackside_daemon.alarm import Alarm
    from trackside_daemon.record import Alert

LEAST_SECONDS = 120.0
"""An alert fires for so long at least, so that a scrape a minute sees it; so does what happened once."""

LONGER = {"UserAlert": 900.0}
"""The same of those that are meant to be seen for longer."""

SHOWN_SECONDS = 900.0
"""The series of an alert stays at 0 for so long after its end."""

RESTORED_SECONDS = 300.0
"""What fired before this daemon was started fires on for so long, unless it is found anew."""

MOST = 1000
"""Alerts in the book, firing and resolved of late."""

log = logging.getLogger("trackside")

Key = tuple[str, str, tuple[tuple[str, str], ...]]
"""An alert's name, the id of its run, and its labels but for those that are folded."""


class Book:
    """Takes alarms, in the pipeline's thread; what changes it says in batches for the state and the history.

    Args:
        off: Which alarms are not wanted; may be changed at any time.
        least: Seconds that an alert fires at least.
    """

    def __init__(self, off: Off | None = None, *, least: float = LEAST_SECONDS) -> None:
        self.off = off or Off()
        self._least = least
        self._entries: dict[Key, Entry] = {}
        self._causes = Causes()
        self._begun: Counter[tuple[str, str, str]] = Counter()
        self._excess = 0
        self._changed = True

    def restore(self, kept: Iterable[Alert], now: float) -> None:
        """What fired when a daemon before this one ended: it is neither told nor counted again."""
        for one in kept:
            entry = restored(one, now + RESTORED_SECONDS)
            self._entries[_key(entry.alert, entry.run, entry.labels.items())] = entry
        self._changed = True

    def take(self, alarms: Iterable[Alarm], now: float) -> list[Batch]:
        """What is wrong, or is no longer, as of *now* in Unix seconds."""
        for alarm in sorted(alarms, key=precedence):
            if self.off.has(alarm.alert, dict(alarm.labels)):
                continue
            key = _key(alarm.alert, alarm.run, alarm.labels)
            entry = self._entries.get(key)
            if alarm.over:
                if entry is not None and entry.fires:
                    entry.lasting.discard(where(alarm))
            elif entry is not None and entry.fires:
                self._renew(entry, alarm, now)
            elif not self._causes.explains(alarm, now):
                self._begin(key, alarm, now)
            self._causes.note(alarm, now)
        return self._told() if self._changed else []

    def tick(self, now: float) -> list[Batch]:
        """Once a second or so: resolves what is over, and forgets what has been for long."""
        for key, entry in list(self._entries.items()):
            if entry.is_due(now) or (entry.fires and self.off.has(entry.alert, entry.labels)):
                entry.ended, entry.told = max(now, entry.started), False
                self._changed = True
            elif entry.ended is not None and now - entry.ended >= SHOWN_SECONDS:
                del self._entries[key]
                self._changed = True
        self._causes.forget(now)
        return self._told() if self._changed or not all(entry.told for entry in self._entries.values()) else []

    def _renew(self, entry: Entry, alarm: Alarm, now: float) -> None:
        if entry.renew(alarm, now + self._hold(alarm)):
            self._changed = True

    def _begin(self, key: Key, alarm: Alarm, now: float) -> None:
        self._entries.pop(key, None)
        if not self._has_room():
            return
        entry = self._entries[key] = Entry(alarm, now + self._hold(alarm))
        entry.renew(alarm, entry.until)
        self._begun[alarm.alert, alarm.severity, entry.labels.get("run", "")] += 1
        self._changed = True

    def _hold(self, alarm: Alarm) -> float:
        return LONGER.get(alarm.alert, self._least) if alarm.once else self._least

    def _has_room(self) -> bool:
        """Whether another may fire; what has resolved gives way, the first first."""
        if len(self._entries) < MOST:
            return True
        resolved = next((key for key, entry in self._entries.items() if not entry.fires), None)
        if resolved is not None:
            del self._entries[resolved]
            return True
        if not self._excess:
            log.warning("%d alerts fire; further ones are only counted", MOST)
        self._excess += 1
        self._changed = True
        return False

    def _told(self) -> list[Batch]:
        """All on the page, and what is news to the history."""
        news = [entry for entry in self._entries.values() if not entry.told]
        for entry in news:
            entry.told = True
        self._changed = False
        return [Batch("alerts", self._samples(), complete=True, records=[entry.record() for entry in news])]

    def _samples(self) -> list[Sample]:
        firing: dict[tuple[str, ...], float] = {}
        for entry in self._entries.values():
            for severity in entry.severities:
                series = labels(entry.alert, severity, entry.labels)
                fires = float(entry.fires and severity == entry.severity)
                firing[series] = max(fires, firing.get(series, 0.0))
        runs = {"", *(entry.labels.get("run", "") for entry in self._entries.values())}
        self._begun = Counter({key: count for key, count in self._begun.items() if key[-1] in runs})
        return [
            *(Sample(FIRING, series, value) for series, value in firing.items()),
            *(Sample(BEGUN, key, float(count)) for key, count in self._begun.items()),
            Sample(EXCESS, (), float(self._excess)),
        ]


def _key(alert: str, run: str, about: Iterable[tuple[str, str]]) -> Key:
    left_out = folded(alert)
    return alert, run, tuple(sorted((name, value) for name, value in about if name not in left_out))
