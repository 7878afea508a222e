"""The log sink: one line when an alert begins, gets worse and ends."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from alerts.sinks.alert_records import alert, notification_of, over

from trackside_daemon.alerts.sinks.log.settings import LogSinkSection
from trackside_daemon.alerts.sinks.log.sink import MAX_QUEUED_LINES, LogSink

if TYPE_CHECKING:
    import pytest

    from trackside_daemon.model.records import Alert


def logged(severity: str, *alerts: Alert) -> list[str]:
    """Return the alerts that are recorded as sent."""
    sink = LogSink(LogSinkSection.model_validate({"severity": severity}))
    box, noted = sink.outbox(), []
    for one in alerts:
        box.put(one, 0.0)
        assert (box.due() is None) == (len(box) == 0)
        message = box.next_message(0.0)
        if message is not None:
            sink.send(message)
            noted += [reported.alert for reported in box.sent(message, 0.0)]
    return noted


def test_an_alert_is_a_line_when_it_begins_gets_worse_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "trackside")
    hot = alert("GpuHot", severity="warning", summary="hot")
    worse = replace(hot, severity="critical", summary="very hot")
    more = replace(hot, summary="hot; also on rank 3")
    assert logged("info", hot, hot, more, replace(hot, silenced=True), worse, over(worse)) == ["GpuHot"] * 3
    assert caplog.messages == [
        "GpuHot (warning): hot",
        "GpuHot (now critical): very hot",
        "GpuHot ended after 2 min 30 s: very hot",
    ]
    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR", "WARNING"]


def test_a_death_has_its_step_and_rows_that_are_stored_later_add_no_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "trackside")
    died = alert("TrainingProcessDied", summary="rank 0, at step 289 or later, was killed")
    logged("info", died, replace(died, summary=died.summary.replace("289", "297")))
    assert caplog.messages == ["TrainingProcessDied (critical): rank 0, at step 289 or later, was killed"]


def test_less_severe_alerts_are_not_logged_and_infos_are_logged_as_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "trackside")
    mild = alert("GpuPowerCapped", severity="info")
    assert logged("warning", mild, over(mild)) == []
    assert logged("off", alert()) == []
    assert caplog.messages == []
    logged("info", mild)
    assert [record.levelname for record in caplog.records] == ["INFO"]


def test_a_restored_alert_is_not_logged_again_but_its_end_is() -> None:
    box = LogSink(LogSinkSection()).outbox()
    box.restore(alert(), 0.0, sent=notification_of(alert()))
    box.restore(over(alert("Over")), 0.0, sent=notification_of(alert("Over")))
    died = alert("TrainingProcessDied", summary="rank 0, at step 289, was killed")
    box.restore(died, 0.0, sent=notification_of(died))  # as an earlier daemon stored it
    box.put(alert(), 1.0)
    assert box.due() is None
    box.put(over(alert()), 2.0)
    assert box.due() == 0.0


def test_the_end_of_an_alert_is_logged_only_after_its_begin(caplog: pytest.LogCaptureFixture) -> None:
    """An alert of a severity that was not logged before the settings were reloaded."""
    sink = LogSink(LogSinkSection())
    box = sink.outbox()
    box.restore(alert("GpuHot", severity="warning", summary="hot"), 0.0, sent=None)
    box.put(over(alert("GpuHot", severity="warning", summary="hot")), 1.0)
    message = box.next_message(1.0)
    assert message is not None
    sink.send(message)
    assert caplog.messages == ["GpuHot (warning): hot", "GpuHot ended after 2 min 30 s: hot"]


def test_lines_are_bounded() -> None:
    box = LogSink(LogSinkSection()).outbox()
    for number in range(MAX_QUEUED_LINES + 5):
        box.put(alert(rank=number), 0.0)
    assert (len(box), box.dropped) == (MAX_QUEUED_LINES, 5)
