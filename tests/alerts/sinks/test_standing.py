"""The outbox for Alertmanager: firing alerts are resent, and ended ones for some minutes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from alerts.sinks.alert_records import START, alert, notification_of, over

from trackside_daemon.alerts.sinks.alertmanager import sink as outbox
from trackside_daemon.alerts.sinks.alertmanager.sink import OVER_SECONDS, AlertmanagerOutbox
from trackside_daemon.alerts.sinks.group_outbox import GIVE_UP_SECONDS
from trackside_daemon.alerts.sinks.sink import SinkFilter

if TYPE_CHECKING:
    from trackside_daemon.model.records import Alert

NOW = START + 50


def box() -> AlertmanagerOutbox:
    return AlertmanagerOutbox(SinkFilter("info"), lambda: NOW)


def sent_alerts(of: AlertmanagerOutbox, now: float) -> list[tuple[str, str, float | None]]:
    """Return name, severity and end of the alerts that are sent at *now*."""
    message = of.next_message(now)
    if message is None:
        return []
    of.sent(message, now)
    return [(one.alert, one.severity, one.ended) for one in message.alerts]


def test_an_alert_is_sent_at_once_and_every_minute_and_its_end_for_five_minutes() -> None:
    of = box()
    nan = alert()
    of.put(nan, 100.0)
    assert of.due() == 100.0
    assert sent_alerts(of, 100.0) == [("NonFinite", "critical", None)]
    assert of.due() == 160.0
    assert sent_alerts(of, 160.0) == [("NonFinite", "critical", None)]
    assert sent_alerts(of, 220.0) == [("NonFinite", "critical", None)]
    of.put(over(nan), 225.0)
    assert sent_alerts(of, 225.0) == [("NonFinite", "critical", START + 150)]
    assert [len(sent_alerts(of, at)) for at in (280.0, 340.0, 400.0, 460.0, 520.0, 525.0)] == [1, 1, 1, 1, 1, 0]
    assert of.due() is None


def test_an_alert_that_ends_at_once_fires_for_two_minutes_so_that_alertmanager_notifies_of_it() -> None:
    of = box()
    of.put(alert(), 0.0)
    of.put(over(alert()), 0.5)
    first = of.next_message(1.0)
    assert first is not None
    assert first.alerts == (alert(),)
    of.failed(first, 2.0, never=False)
    assert sent_alerts(of, 2.0) == [("NonFinite", "critical", None)]
    assert sent_alerts(of, 61.0) == [("NonFinite", "critical", None)]
    assert (sent_alerts(of, 121.0), of.due()) == ([("NonFinite", "critical", None)], 122.0)
    assert sent_alerts(of, 122.0) == [("NonFinite", "critical", START + 150)]
    assert len(of) == 0


def test_an_alert_that_gets_worse_is_a_new_one_and_the_former_ends() -> None:
    of = box()
    hot = alert("GpuHot", severity="warning")
    of.put(hot, 0.0)
    sent_alerts(of, 0.0)
    of.put(replace(hot, severity="critical"), 1.0)
    assert set(sent_alerts(of, 1.0)) == {("GpuHot", "warning", NOW), ("GpuHot", "critical", None)}


def test_a_silenced_alert_ends_and_fires_again_after_the_silence() -> None:
    of = box()
    of.put(replace(alert(), silenced=True), 0.0)
    assert sent_alerts(of, 0.0) == []
    of.put(alert(), 1.0)
    assert sent_alerts(of, 1.0) == [("NonFinite", "critical", None)]
    of.put(replace(alert(), silenced=True), 2.0)
    assert sent_alerts(of, 2.0) == [("NonFinite", "critical", NOW)]
    of.put(alert(), 3.0)
    assert sent_alerts(of, 3.0) == [("NonFinite", "critical", None)]


def test_after_a_restart_a_firing_alert_is_resent_and_recorded_once() -> None:
    of = box()
    of.restore(alert("Known"), 0.0, sent=notification_of(alert("Known")))
    of.restore(alert("New"), 0.0, sent=None)
    message = of.next_message(0.0)
    assert message is not None
    assert {one.alert for one in message.alerts} == {"Known", "New"}
    assert [one.alert for one in of.sent(message, 0.0)] == ["New"]
    assert of.sent(message, 1.0) == []


def test_a_failed_alert_is_retried_and_a_rejected_one_is_resent_with_the_rest() -> None:
    of = box()
    of.put(alert(), 0.0)
    message = of.next_message(0.0)
    assert message is not None
    of.failed(message, 0.5, never=False)
    assert (len(of), of.due()) == (1, 0.5)
    message = of.next_message(1.0)
    assert message is not None
    of.failed(message, 1.0, never=True)
    assert (len(of), of.due()) == (0, 60.0)


def test_the_outbox_is_bounded_and_drops_ended_alerts_first() -> None:
    of = box()
    gone: Alert = alert("Gone")
    firing = [alert(f"Alert{number}") for number in range(outbox.MAX_ALERTS)]
    for one in (firing[0], gone, over(gone), *firing[1:]):
        of.put(one, 0.0)
    assert {name for name, _, _ in sent_alerts(of, 0.0)} == {one.alert for one in firing}


def test_the_end_of_an_alert_does_not_end_another_with_the_same_labels() -> None:
    of = box()
    first = replace(alert(run="a"), labels={"run": "net", "rank": "0"})
    of.put(first, 0.0)
    sent_alerts(of, 0.0)
    of.put(over(first), 10.0)
    assert sent_alerts(of, 120.0) == [("NonFinite", "critical", START + 150)]
    of.put(replace(first, run="b", started=START + 200), 130.0)
    assert sent_alerts(of, 130.0) == [("NonFinite", "critical", None)]
    assert sent_alerts(of, 190.0) == [("NonFinite", "critical", None)]


def test_the_end_of_an_alert_before_a_restart_is_sent_if_it_was_not() -> None:
    of = box()
    of.restore(over(alert("Known")), 0.0, sent=notification_of(alert("Known", severity="warning")))
    of.restore(over(alert("Over")), 0.0, sent=notification_of(over(alert("Over"))))
    message = of.next_message(0.0)
    assert message is not None
    assert [(one.alert, one.severity, one.ended) for one in message.alerts] == [("Known", "warning", START + 150)]
    assert of.sent(message, 0.0) == list(message.alerts)


def test_an_alert_that_ended_before_a_restart_unsent_fires_first() -> None:
    of = box()
    of.restore(over(alert()), 0.0, sent=None)
    assert sent_alerts(of, 0.0) == [("NonFinite", "critical", None)]
    assert sent_alerts(of, 120.0) == [("NonFinite", "critical", START + 150)]


@pytest.mark.parametrize(("severity", "seconds"), [("warning", OVER_SECONDS), ("critical", GIVE_UP_SECONDS)])
def test_an_alert_that_ended_unsent_is_retried_for_some_time_and_counted(severity: str, seconds: float) -> None:
    of = box()
    of.put(alert(severity=severity), 0.0)
    of.put(over(alert(severity=severity)), 1.0)
    for at in (2.0, 100.0, seconds):
        message = of.next_message(at)
        assert message is not None
        of.failed(message, at, never=False)
    assert (of.next_message(seconds + 1.0), of.dropped) == (None, 1)


def test_an_alert_that_a_new_filter_rejects_is_not_sent_unless_it_was_before() -> None:
    of = box()
    of.put(alert("GpuHot", severity="warning"), 0.0)
    sent_alerts(of, 0.0)
    of.put(alert("LossSpike", severity="warning"), 1.0)
    of.filter = SinkFilter("critical")
    assert sent_alerts(of, 1.0) == []
    assert sent_alerts(of, 60.0) == [("GpuHot", "warning", None)]
