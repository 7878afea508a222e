"""Alerts say whose run it is, and only those of important runs are critical."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest
from histories import BEGIN, opened
from pydantic import ValidationError

from trackside.wire import ProcessInfo
from trackside_daemon.alerts.active_alerts import ActiveAlerts
from trackside_daemon.alerts.alerted_runs import AlertedRuns
from trackside_daemon.alerts.settings import AlertsSection
from trackside_daemon.alerts.sinks.group_outbox import labels as sent_labels
from trackside_daemon.alerts.sinks.sink import DaemonInfo
from trackside_daemon.detectors.deaths import Deaths
from trackside_daemon.detectors.run_view import RunClock
from trackside_daemon.model.families.alerts import FIRING
from trackside_daemon.model.finding import Finding
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.records import Alert, Event, is_critical
from trackside_daemon.model.session import Owner

NOW = BEGIN + 3600.0
ALICE = Owner("uid:4242", "alice")
ABOUT = ProcessInfo(k8s_namespace="vision", partition="prod-a100")
OWNED = {"user": "alice", "k8s_namespace": "vision", "partition": "prod-a100"}


def known(*page: str, owner: Owner = ALICE, tags: tuple[str, ...] = ()) -> AlertedRuns:
    runs = AlertedRuns(AlertsSection(**({"page": page} if page else {})))
    session = replace(opened("gpt", world=64, tags=tags, about=ABOUT), owner=owner)
    runs.accept(Batch("sessions", records=[session]))
    return runs


def finding(alert: str = "NonFinite", severity: Any = "critical", **more: Any) -> Finding:
    return Finding(alert, severity, (("rank", "0"), ("run", "gpt")), NOW, "NaN", run="gpt", **more)


def fired(active: ActiveAlerts, *findings: Finding, now: float = NOW) -> list[Alert]:
    return [one for batch in active.accept(findings, now) for one in batch.records if isinstance(one, Alert)]


@pytest.mark.parametrize(
    ("page", "runs"),
    [
        (False, known()),
        (True, known(tags=("small", "page"))),
        (True, known(owner=Owner(f"uid:{os.getuid()}", "we"))),
        (True, known(owner=Owner())),
        (False, known("tag=page", owner=Owner())),
        (True, known("all")),
        *((wanted, known(f"ranks={ranks}")) for ranks, wanted in (("64", True), ("65", False))),
        *((wanted, known(f"age={age}")) for age, wanted in (("1h", True), ("2h", False))),
        *((wanted, known(f"partition={name}")) for name, wanted in (("prod-*", True), ("dev", False))),
        *((wanted, known("own", f"user={name}")) for name, wanted in (("alice", True), ("bob", False))),
        (False, known("user=*", owner=Owner("uid:7", ""))),
    ],
)
def test_a_users_bug_is_a_warning_and_an_important_runs_is_critical(runs: AlertedRuns, *, page: bool) -> None:
    (alert,) = fired(ActiveAlerts(runs=runs), finding())
    assert alert.severity == ("critical" if page else "warning")
    assert runs.severity(finding("LossSpike", "warning")) == "warning"
    assert runs.severity(finding("OwnRule")) == "critical"  # a rule of alerts.rules is the site's own
    assert runs.severity(finding()._replace(run="", labels=(("gpu", "0"),))) == "critical"  # the machine's


@pytest.mark.parametrize("text", ["tag", "tag=", "ranks=many", "age=soon", "size=3", "ALL"])
def test_a_condition_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="is not all, own, ranks=NUMBER"):
        AlertsSection(page=(text,))


def test_an_alert_has_its_owner_in_its_series_and_messages_with_tags_of_the_settings_only() -> None:
    runs = AlertedRuns(AlertsSection(tags=("team-a", "team-b")))
    session = replace(opened("gpt", tags=("team-a", "try 7"), about=ABOUT), owner=ALICE)
    runs.accept(Batch("sessions", records=[session]))
    active = ActiveAlerts(runs=runs)
    (batch,) = active.accept([finding()], NOW)
    (series,) = [dict(zip(FIRING.labels, one.labels, strict=True)) for one in batch.samples if one.metric is FIRING]
    assert {name: series[name] for name in (*OWNED, "tags")} == {**OWNED, "tags": "team-a"}
    (alert,) = (one for one in batch.records if isinstance(one, Alert))
    assert sent_labels(alert, DaemonInfo("node1", ""))["user"] == "alice"


def test_the_alert_of_many_runs_pages_if_one_of_them_may() -> None:
    clock = RunClock()
    clock.advance(NOW)
    severities = []
    for tags in ((), ("page",)):
        deaths, runs = Deaths(), known(tags=tags)
        for run in ("a", "b", "c", "gpt"):
            died = Event(run, 0, clock.now, "rank_ended", 0, fields={"state": "failed"})
            list(deaths.died(died, run, clock, user="alice"))
        (many,) = deaths.evaluate(clock)
        severities.append(runs.severity(many))
    assert severities == ["warning", "critical"]


def test_of_the_tags_of_many_sessions_the_newest_count() -> None:
    runs = AlertedRuns(AlertsSection(tags=("0", "1", "67")))
    for first, number in ((0, 5), (0, 1), (5, 63)):
        tags = tuple(str(tag) for tag in range(first, first + number))
        runs.accept(Batch("sessions", records=[replace(opened("gpt", tags=tags), owner=ALICE)]))
    assert runs.labels("gpt")["tags"] == "0,67"


def test_an_alert_of_many_runs_is_quiet_only_if_all_are_those_of_our_commands() -> None:
    about = ProcessInfo(command=("trackside", "benchmark"))
    runs = known("all")
    own = replace(opened("own", tags=("benchmark",), about=about), owner=ALICE)
    runs.accept(Batch("sessions", records=[own]))
    many = finding("TrainingProcessDied")._replace(run="")
    severities = [runs.severity(many._replace(evidence={"runs": found})) for found in (["own", "gpt"], ["own"])]
    assert severities == ["critical", "info"]


def test_after_a_restart_of_the_daemon_a_restored_alert_is_no_worse_and_no_other() -> None:
    (before,) = fired(ActiveAlerts(runs=known()), finding("TrainingProcessDied"))
    assert before.labels == {"rank": "0", "run": "gpt", **OWNED}
    runs = AlertedRuns(AlertsSection())
    runs.restore([before])
    active = ActiveAlerts(runs=runs)
    active.restore([before], NOW + 60)
    assert fired(active, finding("TrainingProcessDied"), now=NOW + 61) == []
    (later,) = fired(active, finding(), now=NOW + 62)
    assert (later.severity, later.labels["user"]) == ("warning", "alice")


def test_a_trouble_of_a_run_that_does_not_page_is_still_known_to_be_critical() -> None:
    active = ActiveAlerts(runs=known())
    (begun,) = fired(active, finding(severity="warning"))
    assert (begun.severity, "critical" in begun.evidence) == ("warning", False)
    assert fired(active, finding()) == [], "nobody is notified again"
    (worse,) = (one for batch in active.tick(NOW + 1) for one in batch.records if isinstance(one, Alert))
    assert worse.severity == "warning"
    assert is_critical({"severity": worse.severity, "evidence": worse.evidence})
