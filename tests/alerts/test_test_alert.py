"""The test alert: each is one of its own, and there are not too many."""

from __future__ import annotations

import pytest

from trackside_daemon.alerts.active_alerts import ActiveAlerts
from trackside_daemon.alerts.test_alert import MOST, TooManyError, Trial
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.records import Alert

NOW = 1_700_000_000.0


def test_each_is_said_once_and_is_an_alert_of_its_own() -> None:
    trial, book = Trial(), ActiveAlerts()
    first, second = trial.ask("warning", "", "", NOW), trial.ask("critical", "id", "net", NOW)
    (batch,) = book.accept(trial.accept(Batch("test")), NOW)
    told = [record for record in batch.records if isinstance(record, Alert)]
    assert [(one.alert, one.severity, one.run, one.labels) for one in sorted(told, key=lambda one: one.run)] == [
        ("TestAlert", "warning", "", {"test": first}),
        ("TestAlert", "critical", "id", {"run": "net", "test": second}),
    ]
    assert told[0].summary.startswith("this is a test: an alert of severity ")
    assert trial.accept(Batch("test")) == []


def test_there_are_only_so_many_in_two_minutes() -> None:
    trial = Trial()
    for _ in range(MOST):
        trial.ask("info", "", "", NOW)
    with pytest.raises(TooManyError, match="10 test alerts were raised in the last 120 s; wait for a while"):
        trial.ask("info", "", "", NOW + 119)
    assert trial.ask("info", "", "", NOW + 120)
