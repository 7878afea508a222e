"""What fires: the only one that decides so, of all that detectors, watchers and rules say."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

from trackside_daemon.alerts.active_alert import ActiveAlert, alarm_of, restored, where
from trackside_daemon.alerts.disabled import Off
from trackside_daemon.alerts.families import BEGUN, EXCESS, FIRING, firing
from trackside_daemon.alerts.inhibition import Causes, folded, order
from trackside_daemon.alerts.min_firing_time import LEAST_SECONDS, Holds
from trackside_daemon.alerts.silences import Silences, silenced_until
from trackside_daemon.alerts.suppressed import Waiting
from trackside_daemon.model.finding import SEVERITIES
from trackside_daemon.model.metric import Batch, Sample

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trackside_daemon.model.finding import Finding
    from trackside_daemon.model.records import Alert, Silence

SHOWN_SECONDS = 900.0
"""The series of an alert stays at 0 for so long after its end."""

ONCE = frozenset({"RunStarted", "RunRestarted", "RunFinished", "UserAlert"})
"""Those that nobody will say anything more of."""

RESTORED_SECONDS = 300.0
"""What fired before this daemon was started fires on for so long, unless it is found anew."""

MOST = 1000
"""Alerts in the book, firing and resolved of late."""

log = logging.getLogger("trackside")

Key = tuple[str, str, tuple[tuple[str, str], ...], tuple[str, ...]]
"""An alert's name, the id of its run, its labels but for those that are folded, and of what happens once its words."""


class ActiveAlerts:
    """Takes alarms, in the pipeline's thread; what changes it says in batches for the state and the history.

    Args:
        off: Which alarms are not wanted; may be changed at any time.
        silences: What people are not told of; it fires all the same.
        least: Seconds that an alert fires at least.
    """

    def __init__(
        self, off: Off | None = None, silences: Silences | None = None, *, least: float = LEAST_SECONDS
    ) -> None:
        self.off = off or Off()
        self._silences = silences or Silences()
        self._lasting: list[Silence] = []
        self._entries: dict[Key, ActiveAlert] = {}
        self._floor = 0
        """No entry is worth less."""
        self._causes = Causes()
        self._holds = Holds(least)
        self._waiting = Waiting()
        self._begun: Counter[tuple[str, str, str]] = Counter()
        self._excess = self._excess_told = 0
        self._news: dict[ActiveAlert, None] = {}
        self._changed = True

    def restore(self, kept: Iterable[Alert], now: float) -> None:
        """What fired when a daemon before this one ended: it is not counted again.

        Nor is it told again, but for what a silence had that has ended since, and of which nobody was told. *kept* has been
        `Silences.mark`ed.
        """
        for one in kept:
            hold = self._holds.least(one.alert) if one.alert in ONCE else RESTORED_SECONDS
            until = max(now, one.started + hold) if one.alert in ONCE else now + hold
            entry = restored(one, until, hold)
            entry.told = one.silenced or bool(one.notified) or not self._silences.kept_quiet(one, now)
            alarm = alarm_of(one)._replace(once=one.alert in ONCE)
            self._entries[_key(alarm)] = entry
            self._causes.note(alarm, now)
        self._changed = True

    def accept(self, alarms: Sequence[Finding], now: float) -> list[Batch]:
        """What is wrong, or is no longer, as of *now* in Unix seconds.

        What came together is judged together: a cause explains what was found a moment before it, too.
        """
        self._heed(now)
        wanted = [alarm for alarm in alarms if not self.off.has(alarm.alert, dict(alarm.labels))]
        for alarm in wanted:
            if not alarm.over:
                self._causes.note(alarm, now)
        for alarm in sorted(alarms, key=order):
            if alarm.over:
                self._take_back(alarm, now)
            else:
                self._offer(alarm, now)
        for alarm in sorted(wanted, key=order):
            self._causes.note(alarm, now)
        return self._told_at_once()

    def tick(self, now: float) -> list[Batch]:
        """Once a second or so: resolves what is over, forgets what has been for long, and lets fire what waits and may."""
        self._heed(now)
        for key, entry in list(self._entries.items()):
            off = entry.fires and self.off.has(entry.alert, entry.labels)
            if off or entry.is_due(now):
                entry.silenced = entry.silenced or off  # nobody misses it
                self._resolve(key, entry, now)
            elif entry.ended is not None and not 0 <= now - entry.ended < SHOWN_SECONDS:
                del self._entries[key]
                self._changed = True
        self._causes.forget(now)
        self._holds.forget(now)
        for alarm in self._waiting:
            if not self._offer(alarm, now):
                break  # nor is there room for what is no worse
        return self._told()

    def _offer(self, alarm: Finding, now: float) -> bool:
        """It is so: it fires, or waits; False when that is for want of room."""
        key = _key(alarm)
        entry = self._entries.get(key)
        if self.off.has(alarm.alert, dict(alarm.labels)):
            self._waiting.put(alarm)
        elif entry is not None and entry.fires:
            self._waiting.drop(alarm)
            if entry.renew(alarm, now + self._holds.least(alarm.alert)):
                self._news[entry] = None
        elif self._causes.explains(alarm, now):
            self._waiting.put(alarm)
        elif entry is None and not self._make_room(alarm, now):
            self._exceeds(alarm)
            return False
        else:
            self._waiting.drop(alarm)
            self._begin(key, alarm, now)
        return True

    def _take_back(self, alarm: Finding, now: float) -> None:
        """It is so no more."""
        self._waiting.drop(alarm)
        entry = self._entries.get(_key(alarm))
        if entry is not None and entry.fires:
            entry.lasting.pop(where(alarm), None)
            if entry.restored and not entry.lasting:
                entry.until = min(entry.until, now)

    def _begin(self, key: Key, alarm: Finding, now: float) -> None:
        self._entries.pop(key, None)  # to be the last
        hold = self._holds.begin(key, alarm, now)
        entry = self._entries[key] = ActiveAlert(alarm, now + hold, hold)
        entry.renew(alarm, entry.until)
        entry.silenced = self._is_silenced(entry)
        self._floor = min(self._floor, entry.worth)
        self._begun[alarm.alert, alarm.severity, entry.labels.get("run", "")] += 1
        self._causes.note(alarm, now)
        self._news[entry] = None

    def _resolve(self, key: Key, entry: ActiveAlert, now: float) -> None:
        """It fires no more; what of it lasts all the same waits."""
        entry.ended = max(now, entry.started)
        self._floor = 0
        self._news[entry] = None
        self._causes.ended(entry.alert, entry.run, now)
        self._holds.end(key, now)
        for alarm in entry.lasting.values():
            self._waiting.put(alarm._replace(time=now))

    def _heed(self, now: float) -> None:
        """Where silences have begun or ended: what fires is told anew if people are to be told of it now, or no longer."""
        lasting = self._silences.active(now)
        if lasting == self._lasting:
            return
        self._lasting = lasting
        for entry in self._entries.values():
            if entry.fires and entry.silenced != self._is_silenced(entry):
                entry.silenced = not entry.silenced
                self._news[entry] = None

    def _is_silenced(self, entry: ActiveAlert) -> bool:
        return silenced_until(self._lasting, entry.alert, entry.labels) is not None

    def _make_room(self, alarm: Finding, now: float) -> bool:
        """Whether another may fire; what has resolved gives way, then what is less severe, the first first."""
        if len(self._entries) < MOST:
            return True
        worth = SEVERITIES.index(alarm.severity)
        if self._floor > worth:
            return False  # a flood of alarms is not to look at all that fires each time
        key, least = min(self._entries.items(), key=lambda one: one[1].worth)
        self._floor = least.worth
        if least.fires:
            if least.worth > worth:
                return False
            self._resolve(key, least, now)
            self._count_excess()
        del self._entries[key]
        return True

    def _exceeds(self, alarm: Finding) -> None:
        """There is no room for it: it waits, and is counted once."""
        if alarm not in self._waiting:
            self._count_excess()
        self._waiting.put(alarm)

    def _count_excess(self) -> None:
        if not self._excess:
            log.warning("%d alerts fire; further ones wait, the least severe", MOST)
        self._excess += 1

    def _told_at_once(self) -> list[Batch]:
        """What is news: of a flood the whole page would cost too much, which the next tick makes.

        What fires no more is for that page too: another alert with the same series may fire still.
        """
        if not self._news:
            return []
        self._changed = True
        news = self._taken_news()
        begun = {(entry.alert, entry.severities[0], entry.labels.get("run", "")) for entry in news}
        samples = self._samples(news, (one for one in begun if one in self._begun))
        samples = [one for one in samples if one.metric is not FIRING or one.value]
        return [Batch("alerts", samples, records=[entry.record() for entry in news])]

    def _told(self) -> list[Batch]:
        """All on the page, and what is news to the history, if there is any."""
        self._news |= dict.fromkeys(entry for entry in self._entries.values() if not entry.told)
        if not (self._news or self._changed or self._excess != self._excess_told):
            return []
        self._changed, self._excess_told = False, self._excess
        runs = {"", *(entry.labels.get("run", "") for entry in self._entries.values())}
        self._begun = Counter({key: count for key, count in self._begun.items() if key[-1] in runs})
        records = [entry.record() for entry in self._taken_news()]
        return [Batch("alerts", self._samples(self._entries.values(), self._begun), complete=True, records=records)]

    def _taken_news(self) -> list[ActiveAlert]:
        news, self._news = [*self._news], {}
        for entry in news:
            entry.told = True
        return news

    def _samples(self, entries: Iterable[ActiveAlert], begun: Iterable[tuple[str, str, str]]) -> list[Sample]:
        return [
            *firing(entries),
            *(Sample(BEGUN, key, float(self._begun[key])) for key in begun),
            Sample(EXCESS, (), float(self._excess)),
        ]


def _key(alarm: Finding) -> Key:
    left_out = folded(alarm.alert)
    about = sorted((name, value) for name, value in alarm.labels if name not in left_out)
    words = (alarm.summary, alarm.description) if alarm.once else ()
    return alarm.alert, alarm.run, tuple(about), words
