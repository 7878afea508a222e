"""The runs that alerts are about: the owner of each, where it runs, its id in other systems, and whether it may page."""

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from trackside.wire import Hello
from trackside_daemon.alerts.settings import AlertsSection
from trackside_daemon.model.families.alerts import OWNER
from trackside_daemon.model.finding import Finding, Severity
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.records import CRITICAL, Alert, SessionOpened
from trackside_daemon.model.text import matches_wildcards, seconds
from trackside_daemon.model.troubles import TROUBLES

MAX_RUNS = 4096  # most runs that are remembered
MAX_TAGS, TAG_LENGTH = 64, 128  # most tags of a run that count, the newest, and the longest of them

PROGRAMS = frozenset(("trackside", "trackside_daemon"))  # script and module of our commands
START = 4  # words of a command in which they stand: the interpreter, -m and an option may come before


@dataclass
class _Run:
    """Facts about one run, from the hellos of its sessions."""

    # User, Kubernetes namespace and partition, where they are known.
    labels: dict[str, str] = field(default_factory=dict)
    tags: dict[str, None] = field(default_factory=dict)
    ranks: int = 1  # number of its ranks
    began: float = 0.0  # Unix time of its first session
    by_us: bool = True  # the daemon's own user runs it, or nobody knows who does
    is_own: bool = False  # it is that of one of our commands, which tells its user itself what went wrong
    correlation: str = ""  # id by which other systems refer to it; empty for none
    may_page: bool | None = None  # an alert that an earlier daemon raised shows it; None if no alert does

    def meets(self, condition: str, now: float) -> bool:
        """Return whether a condition of `AlertsSection.page` is met."""
        name, _, wanted = condition.partition("=")
        if name in {"all", "own"}:
            return name == "all" or self.by_us
        if name in {"ranks", "age"}:
            return self.ranks >= float(wanted) if name == "ranks" else now - self.began >= float(str(seconds(wanted)))
        # An unknown value meets nothing, not even *.
        values: Iterable[str] = self.tags if name == "tag" else (self.labels.get(name, ""),)
        return any(value and matches_wildcards(value, wanted) for value in values)


class AlertedRuns:
    """A `FindingSource` that finds nothing and remembers what the hellos of sessions state of their runs.

    Args:
        section: The settings; the attribute may be replaced at any time.
    """

    def __init__(self, section: AlertsSection) -> None:
        self.section = section
        self._runs: dict[str, _Run] = {}

    def restore(self, fired: Iterable[Alert]) -> None:
        """Remember the runs of alerts of an earlier daemon: one that is always critical was not, if its run may not page."""
        for alert in fired:
            if alert.run and alert.alert in TROUBLES and TROUBLES[alert.alert].severity == "critical":
                labels = {name: alert.labels[name] for name in OWNER if name in alert.labels}
                self._runs[alert.run] = _Run(labels, may_page=alert.severity == "critical")

    def accept(self, batch: Batch) -> Sequence[Finding]:
        """Remember the runs of the sessions of a batch."""
        for record in batch.records:
            if isinstance(record, SessionOpened):
                self._open(record)
        return ()

    def _open(self, record: SessionOpened) -> None:
        session, hello, owner = record.session, record.hello, record.owner
        run = self._runs.pop(session.run, None) or _Run(began=hello.started / 1e9)
        about = hello.about
        stated = {
            "user": "" if owner is None else owner.user,
            "k8s_namespace": "" if about is None else about.k8s_namespace,
            "partition": "" if about is None else about.partition,
        }
        run.labels |= {name: value for name, value in stated.items() if value}
        new = dict.fromkeys(tag for tag in hello.tags[:MAX_TAGS] if len(tag) <= TAG_LENGTH)
        run.tags = dict.fromkeys([*(tag for tag in run.tags if tag not in new), *new][-MAX_TAGS:])
        run.ranks = max(run.ranks, hello.identity.world)
        run.began = min(run.began or time.time(), hello.started / 1e9)
        run.by_us = owner is None or owner.id in {"", f"uid:{os.getuid()}"}
        run.is_own = run.is_own or _is_own(hello)
        run.correlation = session.correlation or run.correlation
        run.may_page = None
        self._runs[session.run] = run
        if len(self._runs) > MAX_RUNS:
            del self._runs[next(iter(self._runs))]

    def correlation(self, run: str) -> str:
        """Return the id by which other systems refer to a run; empty for none."""
        return self._runs[run].correlation if run in self._runs else ""

    def labels(self, run: str) -> Mapping[str, str]:
        """Return the labels of alerts about a run: `OWNER`, where they are known."""
        if run not in self._runs:
            return {}
        known = self._runs[run]
        tags = ",".join(tag for tag in known.tags if tag in self.section.tags)
        return {**known.labels, **({"tags": tags} if tags else {})}

    def judged(self, finding: Finding) -> Finding:
        """Return a finding with its `severity`; the evidence of one that was critical before says so."""
        severity = self.severity(finding)
        more: dict[str, bool] = {CRITICAL: True} if finding.severity == CRITICAL != severity else {}
        return finding._replace(severity=severity, evidence={**finding.evidence, **more})

    def severity(self, finding: Finding) -> Severity:
        """Return the severity of a finding: only some runs page, and those of our own commands notify nobody."""
        runs = (finding.run,) if finding.run else finding.evidence.get("runs", ())
        if runs and all(run in self._runs and self._runs[run].is_own for run in runs):
            return "info"
        if finding.severity != "critical" or not runs or finding.alert not in TROUBLES:
            return finding.severity
        return "critical" if any(self._may_page(run, finding.time) for run in runs) else "warning"

    def _may_page(self, run: str, now: float) -> bool:
        """Return whether alerts about a run may be critical; those about an unknown run may."""
        known = self._runs.get(run)
        if known is None or known.may_page is not None:
            return known is None or known.may_page is True
        return any(known.meets(condition, now) for condition in self.section.page)


def _is_own(hello: Hello) -> bool:
    command = () if hello.about is None else hello.about.command[:START]
    return "benchmark" in hello.tags and any(PurePath(word).name in PROGRAMS for word in command)
