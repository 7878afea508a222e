"""All active alerts: the one place that decides which alerts fire, from the findings of detectors and rules."""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from trackside_daemon.alerts.active_alert import (
    MIN_FIRING_SECONDS,
    ActiveAlert,
    MinFiringTimes,
    finding_of,
    firing_samples,
    restored_alert,
    text_samples,
)
from trackside_daemon.alerts.alerted_runs import AlertedRuns
from trackside_daemon.alerts.disabled import DisabledAlerts
from trackside_daemon.alerts.inhibition import Inhibitions, evaluation_order, merged_labels
from trackside_daemon.alerts.settings import AlertsSection
from trackside_daemon.alerts.silences import Silences, silenced_until
from trackside_daemon.model.families import alerts as alert_families
from trackside_daemon.model.families.alerts import CORRELATION, OWNER
from trackside_daemon.model.finding import SEVERITIES, Finding
from trackside_daemon.model.metric import Batch, Sample
from trackside_daemon.model.records import LIFE_CYCLE, Alert, AlertNote, Silence

MAX_SUPPRESSED = 1000  # most findings that are kept; with more, the oldest of the least severe is dropped

_Identity = tuple[str, str, tuple[tuple[str, str], ...]]
SHOWN_SECONDS = 900.0  # seconds for which the series of an alert stays at 0 after its end

# Alerts about events, for which no finding reports an end.
ONCE = LIFE_CYCLE | {"UserAlert", "LossDiscontinuity"}

# Findings that report the end of a run or of a rank.
ENDS = frozenset({"RunFinished", "TrainingProcessDied", "OomKilled"})

OLD_SECONDS = 3600.0  # age from which no sink is notified of what a process that has ended left in its spool

RESTORED_SECONDS = 300.0  # seconds for which a restored alert fires on, unless it is found again
MAX_ALERTS = 1000  # most alerts that are kept: those that fire, and those that ended less than `SHOWN_SECONDS` ago

log = logging.getLogger("trackside")

Key = tuple[str, str, tuple[tuple[str, str], ...], tuple[str, ...]]
"""Name, run id, labels without the merged ones, and for an event its texts."""


class SuppressedFindings:
    """Findings that are inhibited, turned off or without room, until they end or may fire."""

    def __init__(self, most: int = MAX_SUPPRESSED) -> None:
        self._most = most
        self._by_severity: dict[str, dict[_Identity, Finding]] = {severity: {} for severity in SEVERITIES}

    def __iter__(self) -> Iterator[Finding]:
        """Iterate over a copy, the most severe first."""
        severities = reversed(SEVERITIES)
        return iter([finding for severity in severities for finding in self._by_severity[severity].values()])

    def __contains__(self, finding: Finding) -> bool:
        return any(_identity(finding) in findings for findings in self._by_severity.values())

    def add(self, finding: Finding) -> None:
        """Add or replace a finding; drop an event, because nothing would report its end."""
        if finding.once:
            return
        # The severity may have changed, and the new entry must be the last.
        self.discard(finding)
        self._by_severity[finding.severity][_identity(finding)] = finding
        if sum(map(len, self._by_severity.values())) > self._most:
            least_severe = next(findings for findings in self._by_severity.values() if findings)
            del least_severe[next(iter(least_severe))]

    def discard(self, finding: Finding) -> None:
        """Remove a finding that has ended or fires."""
        for findings in self._by_severity.values():
            findings.pop(_identity(finding), None)


def _identity(finding: Finding) -> _Identity:
    return finding.alert, finding.run, finding.labels


class ActiveAlerts:
    """Turns findings into alerts, in the pipeline's thread, and returns changes as batches for the state and the history.

    Args:
        disabled: Alerts that the user turned off; the attribute may be replaced at any time.
        silences: Alerts that are muted; they fire all the same.
        least: Least seconds that an alert fires.
        postpones: Returns whether a finding must wait, since the daemon itself may have caused it.
        host: Name of this machine.
        url: Address of the dashboard, with a slash at its end; empty for no links.
        runs: The runs that alerts are about.
        most: See `MAX_ALERTS`.
    """

    def __init__(
        self,
        disabled: DisabledAlerts | None = None,
        silences: Silences | None = None,
        *,
        least: float = MIN_FIRING_SECONDS,
        postpones: Callable[[Finding], bool] = lambda _: False,
        host: str = "",
        url: str = "",
        runs: AlertedRuns | None = None,
        most: int = MAX_ALERTS,
    ) -> None:
        self._most = most
        self._about = host, url
        self._runs = runs or AlertedRuns(AlertsSection())
        self._postpones = postpones
        self.disabled = disabled or DisabledAlerts()
        self._silences = silences or Silences()
        self._active_silences: list[Silence] = []
        self._alerts: dict[Key, ActiveAlert] = {}
        # Lower bound of the priorities of all alerts.
        self._lowest_priority = 0
        self._inhibitions = Inhibitions()
        self._min_firing_times = MinFiringTimes(least)
        self._suppressed = SuppressedFindings()
        self._begun: Counter[tuple[str, str, str]] = Counter()
        self._excess = self._excess_shown = 0
        self._changed: dict[ActiveAlert, None] = {}
        self._page_outdated = True

    def restore(self, records: Iterable[Alert], now: float) -> None:
        """Restore the alerts that fired when an earlier daemon ended, or had ended shortly before, without counting them.

        Sinks are notified again only of alerts whose silence has ended since and which no sink reported. *records* have
        passed `Silences.mark`.
        """
        for record in sorted(records, key=lambda record: record.ended is None):
            event = record.alert in ONCE
            seconds = self._min_firing_times.least(record.alert) if event else RESTORED_SECONDS
            fires_until = max(now, record.started + seconds) if event else now + seconds
            active = restored_alert(record, fires_until, seconds)
            finding = finding_of(record)._replace(once=event)
            self._alerts[_key(finding)] = active
            if record.ended is not None:
                # Its series goes on, so that a scrape sees that it fired and that it has ended.
                active.fires_until = record.started + self._min_firing_times.least(record.alert)
                active.exported = now < active.fires_until
                continue
            # The next tick records an alert that is not recorded, which also queues it for the sinks.
            active.recorded = (
                record.silenced or bool(record.notified) or not self._silences.has_muted(record, before=now)
            )
            self._inhibitions.register(finding, now)
        self._page_outdated = True

    def accept(self, findings: Sequence[Finding], now: float) -> list[Batch]:
        """Apply findings as of *now*, in Unix seconds.

        Findings of one call are evaluated together, so an alert also inhibits a consequence that was found just before it.
        """
        self._apply_silences(now)
        findings = [self._runs.judged(one) for one in findings]
        enabled = [finding for finding in findings if not self.disabled.contains(finding.alert, dict(finding.labels))]
        # Sources first: a consequence may have been found just before its source.
        for finding in enabled:
            if not finding.over:
                self._inhibitions.register(finding, now)
        for finding in sorted(findings, key=evaluation_order):
            if finding.over:
                self._end_finding(finding, now)
            else:
                self._activate(finding, now)
        self._end_held({finding.run for finding in enabled if finding.alert in ENDS and not finding.over}, now)
        # Again in the order of time and with ends, so that the final state of each source counts.
        for finding in sorted(enabled, key=evaluation_order):
            self._inhibitions.register(finding, now)
        return self._changed_batch()

    def conclude(self, notes: Iterable[AlertNote]) -> list[Batch]:
        """Add the conclusions from gathered evidence to the descriptions of their alerts."""
        for note in notes:
            of_note = note.alert, note.run, note.started, dict(note.labels)
            for active in self._alerts.values():
                if (active.alert, active.run, active.started, active.labels) == of_note and active.conclude(
                    note.evidence
                ):
                    self._changed[active] = None
        return self._changed_batch()

    def tick(self, now: float) -> list[Batch]:
        """End alerts that are due, drop those that ended long ago, and activate suppressed findings; about once a second."""
        self._apply_silences(now)
        for key, active in list(self._alerts.items()):
            disabled = active.fires and self.disabled.contains(active.alert, active.labels)
            if disabled or active.is_due(now):
                active.silenced = active.silenced or disabled  # no receiver needs its end
                self._resolve(key, active, now)
            elif active.exported and not active.fires and now >= active.fires_until:
                active.exported = False
                self._page_outdated = True
            # A negative age means that the clock was set back.
            elif active.ended is not None and not 0 <= now - active.ended < SHOWN_SECONDS:
                del self._alerts[key]
                self._page_outdated = True
        self._inhibitions.expire(now)
        self._min_firing_times.expire(now)
        for finding in self._suppressed:
            if not self._activate(finding, now):
                break  # the next ones are no more severe, so there is no room for them either
        return self._full_batch()

    def _activate(self, finding: Finding, now: float) -> bool:
        """Let a finding fire, or suppress it; return False if there is no room for it."""
        key = _key(finding)
        active = self._alerts.get(key)
        # Disabled and inhibited findings are kept, because they may fire once that changes.
        if self.disabled.contains(finding.alert, dict(finding.labels)):
            self._suppressed.add(finding)
        elif active is not None and active.fires:
            self._suppressed.discard(finding)
            if active.update(finding, now + self._min_firing_times.least(finding.alert)):
                self._changed[active] = None
        elif self._inhibitions.inhibits(finding, now) or self._postpones(finding):
            self._suppressed.add(finding)
        elif active is None and not self._make_room(finding, now):
            self._reject(finding)
            return False
        else:
            self._suppressed.discard(finding)
            self._begin(key, finding, now)
        return True

    def _end_finding(self, finding: Finding, now: float) -> None:
        self._suppressed.discard(finding)
        active = self._alerts.get(_key(finding))
        if active is not None and active.fires:
            active.end_finding(finding, now)
            if active.is_old and not active.open_findings:
                self._resolve(_key(finding), active, finding.time)

    def _end_held(self, runs: Collection[str], now: float) -> None:
        """End the alerts of ended runs that fire only for their least time, as events do; the metric keeps them for scrapes."""
        for key, active in list(self._alerts.items()) if runs else ():
            if active.run in runs and active.fires and not active.open_findings and active.alert not in LIFE_CYCLE:
                self._resolve(key, active, now)
                active.exported = True

    def _begin(self, key: Key, finding: Finding, now: float) -> None:
        self._alerts.pop(key, None)  # so that the new one is the last
        if id_ := self._runs.correlation(finding.run):
            finding = finding._replace(evidence={**finding.evidence, CORRELATION: id_})
        seconds = self._min_firing_times.begin(key, finding, now)
        active = self._alerts[key] = ActiveAlert(finding, now + seconds, seconds)
        active.labels |= self._runs.labels(finding.run)
        active.update(finding, active.fires_until)
        active.is_old = finding.late and now - finding.time > OLD_SECONDS
        active.silenced = self._is_silenced(active)
        self._lowest_priority = min(self._lowest_priority, active.priority)
        if finding.alert not in LIFE_CYCLE:
            self._begun[finding.alert, finding.severity, active.labels.get("run", "")] += 1
        self._inhibitions.register(finding, now)
        self._changed[active] = None

    def _resolve(self, key: Key, active: ActiveAlert, now: float) -> None:
        """End an alert; findings that are still open become suppressed."""
        # A clock that was set back must not let an alert end before its start.
        active.ended = max(now, active.started)
        active.exported = False
        self._lowest_priority = 0
        self._changed[active] = None
        self._inhibitions.end(active.alert, active.run, now)
        self._min_firing_times.end(key, active.min_seconds, now)
        # An alert that is disabled or removed early has open findings; they fire again when they may.
        for finding in active.open_findings.values():
            self._suppressed.add(finding._replace(time=now))

    def _apply_silences(self, now: float) -> None:
        """Update `silenced` of every alert if a silence has begun or ended."""
        silences = self._silences.active(now)
        if silences == self._active_silences:
            return
        self._active_silences = silences
        for active in self._alerts.values():
            if active.fires and active.silenced != self._is_silenced(active):
                active.silenced = not active.silenced
                self._changed[active] = None

    def _is_silenced(self, active: ActiveAlert) -> bool:
        return active.is_old or silenced_until(self._active_silences, active.alert, active.labels) is not None

    def _make_room(self, finding: Finding, now: float) -> bool:
        """Return True if another alert fits; remove an ended one first, then the oldest of the less severe ones."""
        if len(self._alerts) < self._most:
            return True
        severity = SEVERITIES.index(finding.severity)
        if self._lowest_priority > severity:
            return False  # a flood of findings must not search all alerts each time
        key, lowest = min(self._alerts.items(), key=lambda item: item[1].priority)
        self._lowest_priority = lowest.priority
        if lowest.fires:
            if lowest.priority > severity:
                return False
            self._resolve(key, lowest, now)
            self._count_excess()
        del self._alerts[key]
        return True

    def _reject(self, finding: Finding) -> None:
        """Suppress a finding for which there is no room, and count it once."""
        if finding not in self._suppressed:
            self._count_excess()
        self._suppressed.add(finding)

    def _count_excess(self) -> None:
        if not self._excess:
            log.warning("%d alerts fire, which is the limit; the least severe ones wait", self._most)
        self._excess += 1

    def _changed_batch(self) -> list[Batch]:
        """Return a batch of the changed alerts only.

        In a flood the full page would cost too much; the next tick renders it. Ended alerts are left to that page too,
        because another alert with the same series may still fire.
        """
        if not self._changed:
            return []
        self._page_outdated = True
        changed = self._pop_changed()
        begun = {(active.alert, active.severities[0], active.labels.get("run", "")) for active in changed}
        samples = self._samples(changed, (key for key in begun if key in self._begun))
        samples = [sample for sample in samples if sample.metric is not alert_families.FIRING or sample.value]
        return [Batch("alerts", samples, records=_records(changed))]

    def _full_batch(self) -> list[Batch]:
        """Return a batch with the series of all alerts and the records of the changed ones, empty if nothing changed."""
        self._changed |= dict.fromkeys(active for active in self._alerts.values() if not active.recorded)
        if not (self._changed or self._page_outdated or self._excess != self._excess_shown):
            return []
        self._page_outdated, self._excess_shown = False, self._excess
        # Counters of runs without an alert are dropped; otherwise they would accumulate.
        runs = {"", *(active.labels.get("run", "") for active in self._alerts.values())}
        self._begun = Counter({key: count for key, count in self._begun.items() if key[-1] in runs})
        records = _records(self._pop_changed())
        return [Batch("alerts", self._samples(self._alerts.values(), self._begun), complete=True, records=records)]

    def _pop_changed(self) -> list[ActiveAlert]:
        changed, self._changed = [*self._changed], {}
        return changed

    def _samples(self, alerts: Collection[ActiveAlert], begun: Iterable[tuple[str, str, str]]) -> list[Sample]:
        return [
            *firing_samples(alerts),
            *text_samples(alerts, *self._about),
            *(Sample(alert_families.BEGUN, key, float(self._begun[key])) for key in begun),
            Sample(alert_families.EXCESS, (), float(self._excess)),
        ]


def _records(changed: Iterable[ActiveAlert]) -> list[Alert]:
    return [record for active in changed for record in active.changes()]


def _key(finding: Finding) -> Key:
    # The owner of a run does not identify an alert: after a restart of the daemon, only a restored one has it.
    left_out = (*merged_labels(finding.alert), *(OWNER if dict(finding.labels).get("run") else ()))
    labels = sorted((name, value) for name, value in finding.labels if name not in left_out)
    texts = (finding.summary, finding.description) if finding.once else ()
    return finding.alert, finding.run, tuple(labels), texts
