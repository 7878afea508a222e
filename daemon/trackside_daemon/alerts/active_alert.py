"""One active alert: when it fires, which ranks have it, and its record for the history.

Alerts that come and go have least firing times, which grow.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any
from urllib.parse import quote

from trackside_daemon.alerts.inhibition import merged_labels
from trackside_daemon.detectors.deaths import ALERTS as DEATHS
from trackside_daemon.model.families import alerts as alert_families
from trackside_daemon.model.families.alerts import CORRELATION
from trackside_daemon.model.finding import SEVERITIES, Finding, Severity
from trackside_daemon.model.metric import Sample
from trackside_daemon.model.records import CALM, CRITICAL, LIFE_CYCLE, STALLS, STEP, Alert
from trackside_daemon.model.text import counted, moment, utc

OTHERS = "; also "  # text between the summary of the first finding and the list of further ranks
RECOVERED = "; recovered at "  # text before the time at which the problem ended, which some detectors report
ACCEPTED = "; has lasted, and counts as normal since "  # the same, of one that stays
_ENDS = ("recovered", "accepted")  # names of the evidence with the times of these
MAX_NAMED = 8  # further ranks or keys that a summary names; the rest are counted
CONCLUSION = "conclusion"  # name of the evidence whose sentence begins the description
ADDITION = "addition"  # name of the evidence whose sentences end the description
MAX_LOCATIONS = 10_000  # most locations that an alert remembers
OCCURRENCES = "occurrences"  # name of the evidence with number, time and summary of each time that the problem came
MAX_LISTED = 20  # most occurrences that the evidence lists: the first, and the newest ones

Location = tuple[str, ...]
"""Values of the merged labels of a finding: its rank, and for some alerts its key."""

_OWN = alert_families.FIRING.labels[2:-1]


class ActiveAlert:
    """Alert that fires from its first finding until every location has reported its end, or its time is over.

    Attributes:
        severities: Severities since it began; the last is the present one.
        locations: All locations that had it, in order; its labels name the first.
        open_findings: Latest finding of each location that has not reported an end.
        fires_until: Earliest end, in Unix seconds.
        min_seconds: Least duration after the latest finding, in seconds.
        over_since: Unix time at which the problem was over, for an event that of its latest finding; None before.
        ended: Unix time of its end; None while it fires.
        exported: The metric shows it as firing: while it fires, and after the end of its run for its least time.
        silenced: A silence matches it, or matched it when it ended.
        recorded: The history has its present state.
        begun: The history has its begin.
        restored: It began before this daemon did.
        is_old: It is about the values of a process that ended long ago: no sink is notified, and it ends when it ended then.
    """

    def __init__(self, finding: Finding, fires_until: float, min_seconds: float) -> None:
        self.alert = finding.alert
        self.run = finding.run
        self.labels = dict(finding.labels)
        self.started = finding.time
        self.severities: list[Severity] = [finding.severity]
        self.summary, self.description = finding.summary, finding.description
        self.evidence = dict(finding.evidence)
        self.locations: dict[Location, None] = {location(finding): None}
        self.open_findings: dict[Location, Finding] = {}
        self.fires_until = fires_until
        self.min_seconds = min_seconds
        self.over_since: float | None = None
        self.ended: float | None = None
        self.exported = True
        self.silenced = self.recorded = self.begun = self.restored = self.is_old = False

    @property
    def severity(self) -> Severity:
        """Present severity."""
        return self.severities[-1]

    @property
    def fires(self) -> bool:
        """True until the alert ends."""
        return self.ended is None

    @property
    def priority(self) -> int:
        """Rank by which alerts keep their place when there are too many: 0 if ended, otherwise 1 to 3 by severity."""
        return SEVERITIES.index(self.severity) + 1 if self.fires else 0

    @property
    def label(self) -> str:
        """Summary without the further occurrences, so that a series with it does not change with each of them."""
        return self.summary + self._others()

    @property
    def explanation(self) -> str:
        """Description without `ADDITION`, which may have what the training printed: /metrics asks for no token."""
        return " ".join(filter(None, (self.evidence.get(CONCLUSION), self.description)))

    def update(self, finding: Finding, fires_until: float) -> bool:
        """Add a finding of this alert, from the same or another location.

        The severity only increases while the alert fires. A finding that repeats an open one of the same time knows more
        about it, so its description counts, and the last step of a process that died. A stall that returns is another one, so
        its evidence counts.

        Returns:
            True if the severity has increased, the description has changed, or a critical problem has come again.
        """
        place = location(finding)
        before = self.open_findings.get(place)
        # One that an earlier daemon has recorded is the same, but ranks are asked again.
        again = self.alert in STALLS and (
            self.over_since is not None or (before is None and self.recorded and place in self.locations)
        )
        critical_again = (place in self.locations or not finding.once) and self._return(finding, fires_until)
        # The next tick writes the longer list of ranks to the history.
        if place not in self.locations and len(self.locations) < MAX_LOCATIONS:
            self.locations[place] = None
            self.recorded = False
        # No finding reports the end of an event, so it fires for a fixed time.
        if finding.once:
            self.fires_until = max(self.fires_until, fires_until)
            self.over_since = finding.time
        else:
            self.open_findings[place] = finding
        worse = SEVERITIES.index(finding.severity) > SEVERITIES.index(self.severity)
        repeated = before if before is not None and before.time == finding.time else finding
        further = self.alert in DEATHS and self.summary == repeated.summary != finding.summary
        better_known = further or repeated.description != finding.description
        if worse or further:
            self.summary = finding.summary
        if worse:
            self.severities.append(finding.severity)
            self.evidence |= finding.evidence
        if again:
            kept = {name: self.evidence[name] for name in (CORRELATION, OCCURRENCES) if name in self.evidence}
            self.evidence = {**finding.evidence, **kept}
        if CRITICAL in finding.evidence and CRITICAL not in self.evidence:
            self.evidence[CRITICAL] = True
            self.recorded = False
        if worse or better_known or again or critical_again:
            self.description = finding.description
            self.recorded = False
        return worse or better_known or again or critical_again

    def end_finding(self, finding: Finding, now: float) -> None:
        """Register that a location has reported the end of the problem, as of *now*, in Unix seconds."""
        self.open_findings.pop(location(finding), None)
        if self.open_findings:
            return
        if self.over_since is None:
            self.over_since = now
        if "recovered" in finding.evidence:
            self.evidence = {
                **self.evidence,
                **{name: finding.evidence[name] for name in _ENDS if name in finding.evidence},
            }
            self.recorded = False
        # A restored alert does not have to fire for its least time again.
        if self.restored:
            self.fires_until = min(self.fires_until, now)

    def _return(self, finding: Finding, fires_until: float) -> bool:
        """Register a finding as another occurrence, if the problem was over and the alert fires only for its least time.

        Returns:
            True if sinks should send it: it is critical, and the problem was over for at least half of that time. The
            time doubles then, so that a problem that comes and goes at any pace causes few notifications.
        """
        if self.over_since is None or (finding.once and finding.time <= self.over_since):
            return False
        over = finding.time - self.over_since
        self.over_since = None
        self.evidence = {name: value for name, value in self.evidence.items() if name not in _ENDS}
        self.fires_until = max(self.fires_until, fires_until)
        listed = self.evidence.get(OCCURRENCES, [{"number": 1, "time": self.started, "summary": self.summary}])
        step = {STEP: finding.evidence[STEP]} if STEP in finding.evidence else {}
        new = {"number": listed[-1]["number"] + 1, "time": finding.time, "summary": finding.summary, **step}
        calm = self.evidence.get(CALM, 0.0) + max(0.0, over)
        self.evidence |= {**finding.evidence, OCCURRENCES: [listed[0], *listed[1:][2 - MAX_LISTED :], new], CALM: calm}
        self.recorded = False  # the next tick writes it to the history
        if finding.severity != "critical" or over < self.min_seconds / 2:
            return False
        self.summary = finding.summary
        for name in (CONCLUSION, ADDITION):  # gathered anew
            self.evidence.pop(name, None)
        self.min_seconds = longer(self.min_seconds)
        self.fires_until = max(self.fires_until, finding.time + self.min_seconds)
        return True

    def conclude(self, evidence: Mapping[str, Any]) -> bool:
        """Begin and end the description with what the gathered evidence shows; return False if that is nothing new.

        An empty text says that there is none to wait for.
        """
        new = {
            name: evidence[name]
            for name in (CONCLUSION, ADDITION)
            if name in evidence and (name not in self.evidence or evidence[name] not in {"", self.evidence[name]})
        }
        if not new:
            return False
        self.evidence |= new
        self.recorded = False
        return True

    def is_due(self, now: float) -> bool:
        """Return True if the alert should end at *now*, in Unix seconds."""
        # A clock that was set back must not make the alert fire for longer than it would have.
        self.fires_until = min(self.fires_until, now + self.min_seconds)
        return self.fires and not self.open_findings and now >= self.fires_until

    def changes(self) -> list[Alert]:
        """Return what the history does not have yet: an alert that ends at once begins before."""
        record = self.record()
        begins = [] if self.begun or self.fires else [replace(record, ended=None)]
        self.begun = self.recorded = True
        return [*begins, record]

    def record(self) -> Alert:
        """Return the alert as the history stores it."""
        return Alert(
            self.alert,
            self.severity,
            self.started,
            self.run,
            self.labels,
            self.summary + self._again() + self._others() + self._recovery(),
            " ".join(filter(None, (self.explanation, self.evidence.get(ADDITION)))),
            self.ended,
            self.evidence,
            self.silenced,
        )

    def _again(self) -> str:
        """Return the clause about further occurrences, empty if there are none."""
        if OCCURRENCES not in self.evidence:
            return ""
        last = self.evidence[OCCURRENCES][-1]
        others = last["number"] - 1
        at = utc(last["time"], "%H:%M:%S")
        text = "" if last["summary"] == self.summary else f": {last['summary']}"
        return f"{OTHERS}{counted(others, 'more time')}, last at {at}{text}"

    def _recovery(self) -> str:
        """Return the clause about the end of the problem, empty while it lasts or if no time is known."""
        at = self.evidence.get("recovered")
        how = ACCEPTED if "accepted" in self.evidence else RECOVERED
        return "" if at is None else f"{how}{moment(at, ' %Z')}"

    def _others(self) -> str:
        """Return the clause about further ranks and keys, empty if there are none."""
        columns = list(zip(*self.locations, strict=True))
        # The first location is in the labels already.
        ranks, keys = (list(dict.fromkeys(column))[1:] for column in (columns[0], columns[-1]))
        clauses = [f"of {_listed(keys)}"] if keys and len(columns) > 1 else []
        if ranks:
            clauses.append(
                f"on rank {ranks[0]}" if len(ranks) == 1 else f"on {len(ranks):,} other ranks: {_listed(ranks)}"
            )
        return OTHERS + " and ".join(clauses) if clauses else ""


def location(finding: Finding) -> Location:
    """Return the values of the finding's merged labels; a missing label is an empty string."""
    labels = dict(finding.labels)
    return tuple(labels.get(name, "") for name in merged_labels(finding.alert))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:MAX_NAMED]) + (", …" if len(names) > MAX_NAMED else "")


def restored_alert(record: Alert, fires_until: float, min_seconds: float) -> ActiveAlert:
    """Return the active alert of a history record that fired when an earlier daemon ended."""
    active = ActiveAlert(finding_of(record), fires_until, min_seconds)
    active.silenced, active.over_since = record.silenced, record.evidence.get("recovered")
    active.recorded = active.begun = active.restored = True
    active.ended = record.ended
    return active


def first_summary(record: Alert) -> str:
    """Return the summary of the first finding, without the clauses about further ranks, occurrences and the end."""
    return record.summary.partition(OTHERS)[0].partition(RECOVERED)[0].partition(ACCEPTED)[0]


def last_occurrence(record: Alert) -> Mapping[str, Any]:
    """Return ``number`` and ``time`` of the last time that the problem of an alert came, and its ``summary`` from the second on."""
    times: Sequence[Mapping[str, Any]] = record.evidence.get(OCCURRENCES, ({"number": 1, "time": record.started},))
    return times[-1]


def finding_of(record: Alert) -> Finding:
    """Return the finding that would begin the alert of a history record."""
    begin, end = (str(record.evidence.get(name, "")) for name in (CONCLUSION, ADDITION))
    text = record.description.removeprefix(begin).removesuffix(end).strip()
    finding = record.as_finding(record.started)
    return finding._replace(summary=first_summary(record), description=text, evidence=record.evidence)


def series_labels(alert: str, severity: str, labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return the label values of an alert's series; labels without a column of their own make up its ``subject``."""
    others = (value for name, value in sorted(labels.items()) if name not in _OWN)
    return (alert, severity, *(labels.get(name, "") for name in _OWN), " ".join(others))


def text_samples(alerts: Iterable[ActiveAlert], host: str, url: str) -> list[Sample]:
    """Return the samples of `TEXT`; *url* is the address of the dashboard, with a slash at its end."""
    samples = []
    for active in alerts:
        if active.exported and active.alert not in LIFE_CYCLE:
            texts = (
                active.label,
                active.explanation,
                utc(active.started),
                host,
                active.run,
                page_of(url, active.run),
                str(active.evidence.get(alert_families.CORRELATION, "")),
            )
            samples.append(
                Sample(alert_families.TEXT, (*series_labels(active.alert, active.severity, active.labels), *texts), 1.0)
            )
    return samples


def page_of(url: str, run: str) -> str:
    """Return the address of a run's page on the dashboard at *url*, or for the machine that of its alerts; else empty."""
    return url and url + (f"runs/{quote(run, safe='')}" if run else "alerts")


def firing_samples(alerts: Iterable[ActiveAlert]) -> list[Sample]:
    """Return the samples of `FIRING` and `SILENCED` for *alerts*, one for each severity that an alert has had."""
    firing: dict[tuple[str, ...], float] = {}
    silenced: set[tuple[str, ...]] = set()
    for active in alerts:
        if active.alert in LIFE_CYCLE:
            continue
        if active.fires and active.silenced:
            silenced.add(series_labels(active.alert, active.severity, active.labels))
        for severity in active.severities:
            series = series_labels(active.alert, severity, active.labels)
            # Events with different texts share a series, which is 1 while any of them fires.
            value = float(active.exported and severity == active.severity)
            firing[series] = max(value, firing.get(series, 0.0))
    return [
        *(Sample(alert_families.FIRING, series, value) for series, value in firing.items()),
        *(Sample(alert_families.SILENCED, series, 1.0) for series in silenced),
    ]


# Least seconds that an alert fires, so that a scrape once a minute sees it; also the duration of an event.
MIN_FIRING_SECONDS = 120.0

LONGER = {"UserAlert": 900.0}  # least seconds of alerts that should be visible for longer, by name

# Seconds after its end within which an alert that comes again fires for twice as long as before, and the upper bound of
# that. So an alert that comes and goes, at whatever pace, notifies about 30 times a day at most, instead of 700 times.
AGAIN_SECONDS = LONGEST_SECONDS = 3600.0

MAX_REMEMBERED = 10_000  # most alerts that are remembered; with more, the oldest are dropped


def longer(seconds: float) -> float:
    """Return the least firing time, in seconds, of an alert that comes again after one with this time."""
    return min(LONGEST_SECONDS, 2 * seconds)


class MinFiringTimes:
    """Least firing time of the latest occurrence of each alert, and when that ended.

    Args:
        least: Least seconds that an alert fires.
    """

    def __init__(self, least: float = MIN_FIRING_SECONDS) -> None:
        self._least = least
        self._recent: dict[Hashable, tuple[float, float]] = {}

    def least(self, alert: str) -> float:
        """Return the least firing time, in seconds, of an alert that has not fired recently."""
        return LONGER.get(alert, self._least)

    def begin(self, key: Hashable, finding: Finding, now: float) -> float:
        """Register that an alert begins, and return its least firing time in seconds."""
        seconds = self.least(finding.alert)
        if finding.once:
            return seconds
        # Removed and inserted again, so that the oldest alert is the first of the dict.
        before, ended = self._recent.pop(key, (0.0, inf))
        if 0 <= now - ended < AGAIN_SECONDS:
            seconds = max(seconds, longer(before))
        self._recent[key] = seconds, inf
        if len(self._recent) > MAX_REMEMBERED:
            del self._recent[next(iter(self._recent))]
        return seconds

    def end(self, key: Hashable, seconds: float, now: float) -> None:
        """Register that an alert has ended, whose least firing time had become so many seconds."""
        if key in self._recent:
            self._recent[key] = seconds, now

    def expire(self, now: float) -> None:
        """Drop the alerts that ended long ago, or in the future because a clock was set back."""
        past = [key for key, (_, ended) in self._recent.items() if ended < inf and not 0 <= now - ended < AGAIN_SECONDS]
        for key in past:
            del self._recent[key]
