"""The test alert: each is separate from the others, and their number is limited."""

from __future__ import annotations

import pytest

from trackside_daemon.alerts.active_alerts import ActiveAlerts
from trackside_daemon.alerts.test_alert import MAX_TEST_ALERTS, AlertTester, TooManyTestAlertsError
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.records import Alert

NOW = 1_700_000_000.0


def test_each_test_is_reported_once_and_is_a_separate_alert() -> None:
    tester, active = AlertTester(), ActiveAlerts()
    first, second = tester.request("warning", "", "", NOW), tester.request("critical", "id", "net", NOW)
    (batch,) = active.accept(tester.accept(Batch("test")), NOW)
    reported = [record for record in batch.records if isinstance(record, Alert)]
    assert [(one.alert, one.severity, one.run, one.labels) for one in sorted(reported, key=lambda one: one.run)] == [
        ("TestAlert", "warning", "", {"test": first}),
        ("TestAlert", "critical", "id", {"run": "net", "test": second}),
    ]
    assert reported[0].summary.startswith("this is a test: an alert of severity ")
    assert tester.accept(Batch("test")) == []


def test_tests_are_limited_within_two_minutes() -> None:
    tester = AlertTester()
    for _ in range(MAX_TEST_ALERTS):
        tester.request("info", "", "", NOW)
    with pytest.raises(
        TooManyTestAlertsError, match="10 test alerts were raised in the last 120 s; wait and try again"
    ):
        tester.request("info", "", "", NOW + 119)
    assert tester.request("info", "", "", NOW + 120)
