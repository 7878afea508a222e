"""The grouping outbox: how alerts become messages, when, and which are never sent."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from alerts.sinks.alert_records import START, alert, notification_of, over

from trackside_daemon.alerts.sinks.group_outbox import GIVE_UP_SECONDS, GroupOutbox
from trackside_daemon.alerts.sinks.sink import SinkFilter, SinkMessage

if TYPE_CHECKING:
    from trackside_daemon.model.records import Alert

ALL = SinkFilter("info")


def message(box: GroupOutbox, now: float) -> SinkMessage:
    found = box.next_message(now)
    assert found is not None
    return found


def sent(box: GroupOutbox, now: float) -> list[str]:
    """Return the names of the alerts that are sent at *now*."""
    found = message(box, now)
    box.sent(found, now)
    return [one.alert for one in found.alerts]


def test_alerts_of_a_run_within_a_second_are_one_message_the_most_severe_first() -> None:
    box = GroupOutbox(ALL)
    box.put(alert("LossPlateau", severity="info"), 0.0)
    box.put(alert("NonFinite"), 0.9)
    box.put(alert("DiskFilling", run=""), 0.5)
    assert (box.next_message(0.9), box.due(), len(box)) == (None, 1.0, 3)
    assert sent(box, 1.0) == ["NonFinite", "LossPlateau"]
    assert box.next_message(1.0) is None
    assert sent(box, 1.5) == ["DiskFilling"]
    assert (box.due(), len(box)) == (None, 0)


def test_then_there_is_one_message_a_minute_but_a_critical_one_waits_a_second() -> None:
    box = GroupOutbox(ALL)
    box.put(alert("GpuHot", severity="warning"), 0.0)
    sent(box, 1.0)
    box.put(alert("DataLoaderBottleneck", severity="warning"), 2.0)
    assert box.due() == 61.0
    box.put(alert("NonFinite"), 10.0)
    assert box.due() == 11.0
    assert sent(box, 11.0) == ["NonFinite", "DataLoaderBottleneck"]
    box.put(over(alert("DataLoaderBottleneck", severity="warning")), 12.0)
    assert box.due() == 71.0
    ending = message(box, 71.0)
    assert [(one.alert, one.ended is None) for one in (*ending.alerts, *ending.others)] == [
        ("DataLoaderBottleneck", False),
        ("NonFinite", True),
        ("GpuHot", True),
    ]


def test_a_message_about_a_stall_waits_for_the_verdict_on_it() -> None:
    box = GroupOutbox(ALL)
    box.put(alert("TrainingStalled"), 0.0)
    assert box.due() == 5.0
    box.put(alert("TrainingStalled", evidence={"conclusion": "rank 1 never arrived"}), 2.0)
    assert box.due() == 3.0
    assert [one.evidence for one in message(box, 3.0).alerts] == [{"conclusion": "rank 1 never arrived"}]


def test_a_critical_alert_is_urgent_and_others_of_its_run_go_with_it() -> None:
    box = GroupOutbox(ALL)
    box.put(alert("DataLoaderBottleneck", severity="warning", run="a"), 0.0)
    box.put(alert("GpuHot", severity="warning", run="b"), 0.1)
    box.put(alert("LossSpike", severity="warning", run="b"), 0.15)
    box.put(alert("NonFinite", run="b"), 0.2)
    assert (box.due(urgent=True), box.due(urgent=False)) == (1.1, 1.0)
    urgent = box.next_message(5.0, urgent=True)
    assert urgent is not None
    assert [one.alert for one in urgent.alerts] == ["NonFinite", "GpuHot", "LossSpike"]
    assert (box.due(urgent=True), box.next_message(5.0, urgent=True)) == (None, None), "it is in flight"
    box.put(alert("GpuThrottled", severity="warning", run="b"), 5.0)
    assert [sent(box, 6.0) for _ in range(2)] == [["DataLoaderBottleneck"], ["GpuThrottled"]]


def test_a_warning_does_not_wait_for_a_sent_info_and_infos_wait_for_each_other() -> None:
    box = GroupOutbox(ALL)
    box.put(alert("RunStarted", severity="info"), 0.0)
    sent(box, 1.0)
    box.put(alert("LossHardBatch", severity="info"), 2.0)
    assert box.due() == 61.0
    box.put(alert("DataLoaderBottleneck", severity="warning"), 3.0)
    assert sent(box, 4.0) == ["DataLoaderBottleneck", "LossHardBatch"]


def test_an_alert_about_slowness_waits_for_its_likely_cause_but_not_long() -> None:
    box = GroupOutbox(ALL)
    slow = alert("SlowStep", severity="warning")
    box.put(slow, 0.0)
    assert box.due() == 5.0
    known = replace(slow, evidence={"conclusion": "Likely cause: heat."}, description="Likely cause: heat. look")
    box.put(known, 2.0)
    assert box.due() == 3.0
    assert message(box, 3.0).alerts == (known,)


def test_a_test_alert_waits_for_no_other_and_no_other_for_it() -> None:
    box = GroupOutbox(ALL)
    box.put(alert("GpuHot", severity="warning", run=""), 0.0)
    sent(box, 1.0)
    for moment in (2.0, 5.0):
        box.put(alert("TestAlert", severity="warning", run="", started=moment), moment)
        assert sent(box, moment + 1) == ["TestAlert"]
    box.put(alert("GpuThrottled", severity="warning", run=""), 10.0)
    assert box.due() == 61.0


def test_a_user_alert_with_the_same_title_and_another_text_is_sent() -> None:
    box = GroupOutbox(ALL)
    box.put(alert("UserAlert", description="for 1000 steps"), 0.0)
    assert sent(box, 1.0) == ["UserAlert"]
    box.put(
        alert("UserAlert", description="for 2000 steps", started=START + 60), 60.0
    )  # a record of its own, in the book
    assert sent(box, 61.0) == ["UserAlert"]


def test_the_latest_state_of_64_ranks_is_sent_once() -> None:
    box = GroupOutbox(ALL)
    one = alert(summary="rank 0 broke")
    box.put(one, 0.0)
    full = replace(one, summary="rank 0 broke; also on 63 other ranks: 1, 2, …")
    box.put(full, 0.5)
    assert message(box, 1.0).alerts == (full,)
    box.sent(SinkMessage("id", (full,)), 1.0)
    box.put(replace(one, summary="rank 0 broke; also on 64 other ranks: 1, 2, …"), 2.0)
    assert (len(box), box.due()) == (0, None), "one more rank is no news"
    box.put(replace(one, summary="rank 0 broke otherwise"), 3.0)
    assert len(box) == 1, "that something else has happened is"


def test_an_alert_that_gets_worse_is_sent_again() -> None:
    box = GroupOutbox(SinkFilter())
    mild = alert("GpuHot", severity="info")
    box.put(mild, 0.0)
    assert len(box) == 0
    box.put(replace(mild, severity="warning"), 1.0)
    assert sent(box, 2.0) == ["GpuHot"]
    box.put(replace(mild, severity="critical"), 3.0)
    assert sent(box, 4.0) == ["GpuHot"]


def test_which_alerts_the_filter_accepts() -> None:
    wants = SinkFilter("warning", ("RunStarted",))
    assert wants.accepts(alert("RunStarted", severity="info"))
    assert not wants.accepts(alert("LossHardBatch", severity="info"))
    assert wants.accepts(alert("DataLoaderBottleneck", severity="warning"))
    assert not SinkFilter("off", ("RunStarted",)).accepts(alert("RunStarted"))


def test_the_end_of_an_info_is_no_message() -> None:
    box = GroupOutbox(ALL)
    started = alert("RunStarted", severity="info")
    box.put(started, 0.0)
    sent(box, 1.0)
    box.put(over(started), 2.0)
    assert (len(box), box.next_message(1000.0), box.dropped) == (0, None, 0)


@pytest.mark.parametrize("severity", ["info", "warning", "critical"])
def test_an_alert_that_ends_before_the_first_message_is_sent_as_firing_and_then_as_ended(severity: str) -> None:
    box = GroupOutbox(ALL)
    nan = alert(severity=severity)
    box.put(nan, 0.0)
    box.put(over(nan), 0.85)
    assert (box.due(urgent=True), box.due()) == (1.0 if severity == "critical" else None, 1.0)
    assert message(box, 1.0).alerts == (nan,)
    box.sent(SinkMessage("id", (nan,)), 1.0)
    if severity == "info":
        assert len(box) == 0
        return
    assert message(box, 61.0).alerts == (over(nan),)
    box.sent(SinkMessage("id", (over(nan),)), 61.0)
    assert (box.due(), len(box), box.dropped) == (None, 0, 0)


def test_an_ended_alert_that_was_never_sent_as_firing_is_not_sent() -> None:
    box = GroupOutbox(ALL)
    box.put(over(alert()), 0.0)
    assert (len(box), box.due()) == (0, None)


def test_the_end_of_an_alert_that_ends_while_in_flight_is_sent() -> None:
    box = GroupOutbox(ALL)
    nan = alert()
    box.put(nan, 0.0)
    flying = message(box, 1.0)
    box.put(over(nan), 1.5)
    assert box.next_message(100.0) is None, "it is not sent twice at once"
    assert box.sent(flying, 2.0) == [nan]
    assert message(box, 62.0).alerts == (over(nan),)


def test_a_silenced_alert_is_sent_when_the_silence_ends() -> None:
    box = GroupOutbox(ALL)
    nan = alert()
    box.put(replace(nan, silenced=True), 0.0)
    assert box.next_message(10.0) is None
    box.put(nan, 20.0)
    assert sent(box, 21.0) == ["NonFinite"]


def test_a_sent_alert_that_is_silenced_is_not_sent_twice_and_its_end_is_sent() -> None:
    box = GroupOutbox(ALL)
    nan = alert()
    box.put(nan, 0.0)
    sent(box, 1.0)
    box.put(replace(nan, silenced=True), 2.0)
    box.put(nan, 100.0)
    assert box.next_message(1000.0) is None, "they know it"
    box.put(replace(nan, silenced=True), 1001.0)
    box.put(replace(over(nan), silenced=True), 1002.0)
    assert message(box, 1100.0).alerts == (replace(over(nan), silenced=True),)


def test_the_end_of_an_alert_that_is_silenced_while_in_flight_is_sent() -> None:
    box = GroupOutbox(ALL)
    nan = alert()
    box.put(nan, 0.0)
    flying = message(box, 1.0)
    box.put(replace(nan, silenced=True), 1.5)
    assert box.sent(flying, 2.0) == [nan]
    box.put(replace(over(nan), silenced=True), 3.0)
    assert sent(box, 100.0) == ["NonFinite"]


def test_an_alert_that_got_worse_under_a_silence_is_sent_after_it() -> None:
    box = GroupOutbox(ALL)
    hot = alert("GpuHot", severity="warning")
    box.put(hot, 0.0)
    sent(box, 1.0)
    worse = replace(hot, severity="critical", silenced=True)
    box.put(worse, 2.0)
    assert box.next_message(100.0) is None
    box.put(replace(worse, silenced=False), 101.0)
    assert sent(box, 102.0) == ["GpuHot"]


def test_after_a_restart_sent_alerts_are_not_sent_again_and_the_others_are() -> None:
    box = GroupOutbox(ALL)
    known, new = alert("A"), alert("B")
    box.restore(known, 0.0, sent=notification_of(known))
    box.restore(new, 0.0, sent=None)
    assert sent(box, 1.0) == ["B"]
    box.put(over(known), 2.0)
    assert sent(box, 61.0) == ["A"]


def test_a_failed_message_waits_with_newer_alerts_and_other_runs_go_first() -> None:
    box = GroupOutbox(ALL)
    box.put(alert(), 0.0)
    box.put(alert("B", run="other"), 0.1)
    first = message(box, 2.0)
    box.failed(first, 2.0, never=False)
    assert message(box, 2.0).group == "other"
    box.put(alert("A"), 2.5)
    assert {one.alert for one in message(box, 3.0).alerts} == {"NonFinite", "A"}


def test_after_a_restart_alerts_that_got_worse_or_ended_meanwhile_are_sent() -> None:
    box = GroupOutbox(SinkFilter("warning", ("RunFinished",)))
    mild, nan, done = alert("GpuHot", severity="warning"), alert(), alert("RunFinished", severity="info")
    box.restore(replace(mild, severity="critical"), 0.0, sent=notification_of(mild))
    box.restore(over(nan), 0.0, sent=notification_of(nan))
    box.restore(over(alert("Lost")), 0.0, sent=None)
    box.restore(over(done), 0.0, sent=None)
    first = message(box, 1.0)
    box.sent(first, 1.0)
    assert [(one.alert, one.ended is None) for one in first.alerts] == [
        ("GpuHot", True),
        ("Lost", True),
        ("RunFinished", True),
        ("NonFinite", False),
    ]
    assert [(one.alert, one.ended is None) for one in message(box, 61.0).alerts] == [("Lost", False)]
    box.sent(SinkMessage("id", (over(alert("Lost")),)), 61.0)
    box.restore(over(alert("A")), 2.0, sent=notification_of(over(alert("A"))))
    box.restore(over(done), 2.0, sent=notification_of(done))
    box.restore(over(replace(alert("C"), silenced=True)), 2.0, sent=None)
    assert (len(box), box.next_message(1000.0)) == (0, None)


def test_a_firing_alert_stays_queued_until_it_is_sent() -> None:
    box = GroupOutbox(ALL)
    hot = alert("GpuHot", severity="warning")
    box.put(hot, 0.0)
    sent(box, 1.0)
    box.put(replace(hot, severity="critical"), 2.0)
    box.put(alert(), 2.0)
    for at in range(10, 30_000, 600):
        box.failed(message(box, float(at)), float(at), never=False)
    assert sent(box, 30_000.0) == ["GpuHot", "NonFinite"]
    assert box.dropped == 0


def test_alerts_that_ended_an_hour_ago_or_were_rejected_are_given_up_and_counted() -> None:
    box = GroupOutbox(ALL)
    known = alert("Known")
    box.put(known, 0.0)
    sent(box, 1.0)
    for one in (known, alert()):
        box.put(one, 2.0)
        box.put(over(one), 3.0)
    box.failed(message(box, 100.0), 100.0, never=False)
    assert len(box) == 2
    assert box.next_message(GIVE_UP_SECONDS + 3.0) is None
    assert (box.dropped, len(box)) == (2, 0)
    box.put(alert("A"), 5000.0)
    box.failed(message(box, 5001.0), 5001.0, never=True)
    assert (box.dropped, len(box), box.next_message(6000.0)) == (3, 0, None)


@pytest.mark.parametrize(
    ("one", "late"),
    [
        (alert(), True),
        (alert("UserAlert", severity="warning"), True),
        (alert("RunFinished", severity="info"), True),
        (alert("DataLoaderBottleneck", severity="warning"), False),
    ],
)
def test_an_alert_that_ended_unsent_is_sent_if_critical_or_an_event(one: Alert, late: bool) -> None:
    box = GroupOutbox(SinkFilter("warning", ("RunFinished",)))
    box.put(one, 0.0)
    box.failed(message(box, 1.0), 1.0, never=False)
    box.put(over(one), 120.0)
    assert (box.dropped, len(box)) == (int(not late), int(late))
    if late:
        assert message(box, 3000.0).alerts == (one,)


def test_a_full_outbox_counts_a_dropped_escalation_and_sends_the_end() -> None:
    box = GroupOutbox(ALL, most=1)
    hot = alert("GpuHot", severity="info")
    box.put(hot, 0.0)
    sent(box, 1.0)
    box.put(replace(hot, severity="warning"), 2.0)
    box.put(alert(), 3.0)
    assert (box.dropped, sent(box, 100.0)) == (1, ["NonFinite"])
    box.put(replace(hot, severity="warning"), 101.0)
    assert sent(box, 200.0) == ["GpuHot"]


@pytest.mark.parametrize("last", ["info", "critical"])
def test_a_full_outbox_drops_the_oldest_info_first(last: str) -> None:
    box = GroupOutbox(ALL, most=2)
    box.put(alert("Worst"), 0.0)
    box.put(alert("Old", severity="info"), 0.1)
    box.put(alert("New", severity=last), 0.2)
    assert {one.alert for one in message(box, 2.0).alerts} == {"Worst", "New"}
    assert box.dropped == 1


def test_a_message_about_a_death_waits_for_what_is_known_of_it_and_later_rows_cause_no_other() -> None:
    box = GroupOutbox(ALL)
    died = alert("TrainingProcessDied", summary="rank 0 of run net, at step 289 or later, was killed by SIGKILL")
    box.put(died, 0.0)
    assert box.due() == 5.0
    known = replace(
        died, evidence={"addition": "Its command printed: Killed"}, description="look. Its command printed: Killed"
    )
    box.put(known, 2.0)
    assert (box.due(), message(box, 3.0).alerts) == (3.0, (known,))
    box.sent(SinkMessage("id", (known,)), 3.0)
    box.put(replace(known, summary=died.summary.replace("289", "1,297")), 4.0)
    assert (len(box), box.due()) == (0, None)
    restored = GroupOutbox(ALL)
    restored.restore(known, 0.0, sent=notification_of(known))
    assert (len(restored), restored.due()) == (0, None), "an earlier daemon stored the summary with the step"
