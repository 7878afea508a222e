"""What people read: how alerts become messages, when, and which are never told."""

from __future__ import annotations

from dataclasses import replace

import pytest
from alerts.sinks.told import alert, over

from trackside_daemon.alerts.sinks.grouping import GIVE_UP_SECONDS, Grouping
from trackside_daemon.alerts.sinks.sink import Message
from trackside_daemon.alerts.sinks.wants import Wants

ALL = Wants("info")


def message(box: Grouping, now: float) -> Message:
    found = box.take(now)
    assert found is not None
    return found


def sent(box: Grouping, now: float) -> list[str]:
    """The names of what is sent at *now*."""
    found = message(box, now)
    box.sent(found, now)
    return [one.alert for one in found.alerts]


def test_alerts_of_a_run_that_begin_within_a_second_are_one_message_the_worst_first() -> None:
    box = Grouping(ALL)
    box.put(alert("LossPlateau", severity="info"), 0.0)
    box.put(alert("NonFinite"), 0.9)
    box.put(alert("DiskFilling", run=""), 0.5)
    assert (box.take(0.9), box.due(), len(box)) == (None, 1.0, 3)
    assert sent(box, 1.0) == ["NonFinite", "LossPlateau"]
    assert box.take(1.0) is None
    assert sent(box, 1.5) == ["DiskFilling"]
    assert (box.due(), len(box)) == (None, 0)


def test_then_there_is_one_message_a_minute_but_a_critical_one_waits_a_second() -> None:
    box = Grouping(ALL)
    box.put(alert("LossPlateau", severity="info"), 0.0)
    sent(box, 1.0)
    box.put(alert("SlowStep", severity="warning"), 2.0)
    assert box.due() == 61.0
    box.put(alert("NonFinite"), 10.0)
    assert box.due() == 11.0
    assert sent(box, 11.0) == ["NonFinite", "SlowStep"]
    box.put(over(alert("SlowStep", severity="warning")), 12.0)
    assert box.due() == 71.0
    ending = message(box, 71.0)
    assert [(one.alert, one.ended is None) for one in (*ending.alerts, *ending.others)] == [
        ("SlowStep", False),
        ("NonFinite", True),
    ]


def test_of_64_ranks_the_newest_word_is_sent_and_sent_once() -> None:
    box = Grouping(ALL)
    one = alert(summary="rank 0 broke")
    box.put(one, 0.0)
    full = replace(one, summary="rank 0 broke; also on 63 other ranks: 1, 2, …")
    box.put(full, 0.5)
    assert message(box, 1.0).alerts == (full,)
    box.sent(Message("id", (full,)), 1.0)
    box.put(replace(one, summary="rank 0 broke; also on 64 other ranks: 1, 2, …"), 2.0)
    assert (len(box), box.due()) == (0, None), "one more rank is no news"
    box.put(replace(one, summary="rank 0 broke otherwise"), 3.0)
    assert len(box) == 1, "that something else has happened is"


def test_what_gets_worse_is_told_anew() -> None:
    box = Grouping(Wants())
    mild = alert("GpuHot", severity="info")
    box.put(mild, 0.0)
    assert len(box) == 0
    box.put(replace(mild, severity="warning"), 1.0)
    assert sent(box, 2.0) == ["GpuHot"]
    box.put(replace(mild, severity="critical"), 3.0)
    assert sent(box, 4.0) == ["GpuHot"]


def test_which_alerts_are_wanted() -> None:
    wants = Wants("warning", ("RunStarted",))
    assert wants.has(alert("RunStarted", severity="info"))
    assert not wants.has(alert("LossHardBatch", severity="info"))
    assert wants.has(alert("SlowStep", severity="warning"))
    assert not Wants("off", ("RunStarted",)).has(alert("RunStarted"))


def test_that_an_info_is_over_is_no_message_and_what_was_over_before_it_was_told_is_none() -> None:
    box = Grouping(ALL)
    started, nan = alert("RunStarted", severity="info"), alert()
    box.put(started, 0.0)
    sent(box, 1.0)
    box.put(over(started), 2.0)
    box.put(nan, 3.0)
    box.put(over(nan), 3.5)
    assert (len(box), box.take(1000.0), box.dropped) == (0, None, 1)


def test_what_ends_while_it_is_being_sent_is_told_to_be_over() -> None:
    box = Grouping(ALL)
    nan = alert()
    box.put(nan, 0.0)
    flying = message(box, 1.0)
    box.put(over(nan), 1.5)
    assert box.take(100.0) is None, "it is not sent twice at once"
    assert box.sent(flying, 2.0) == [nan]
    assert message(box, 62.0).alerts == (over(nan),)


def test_what_is_silenced_is_not_told_and_is_when_the_silence_ends() -> None:
    box = Grouping(ALL)
    nan = alert()
    box.put(replace(nan, silenced=True), 0.0)
    assert box.take(10.0) is None
    box.put(nan, 20.0)
    assert sent(box, 21.0) == ["NonFinite"]
    box.put(replace(nan, silenced=True), 22.0)
    box.put(replace(over(nan), silenced=True), 23.0)
    assert box.take(1000.0) is None


def test_what_a_daemon_before_this_one_told_is_not_told_again_and_the_rest_is() -> None:
    box = Grouping(ALL)
    known, new = alert("A"), alert("B")
    box.restore(known, 0.0, told=True)
    box.restore(new, 0.0, told=False)
    assert sent(box, 1.0) == ["B"]
    box.put(over(known), 2.0)
    assert sent(box, 61.0) == ["A"]


def test_a_message_that_is_not_taken_waits_with_what_comes_meanwhile_and_others_go_before_it() -> None:
    box = Grouping(ALL)
    box.put(alert(), 0.0)
    box.put(alert("B", run="other"), 0.1)
    first = message(box, 2.0)
    box.failed(first, 2.0, never=False)
    assert message(box, 2.0).group == "other"
    box.put(alert("A"), 2.5)
    assert {one.alert for one in message(box, 3.0).alerts} == {"NonFinite", "A"}


def test_after_an_hour_and_when_refused_for_good_it_is_given_up_and_counted() -> None:
    box = Grouping(ALL)
    box.put(alert(), 0.0)
    box.failed(message(box, 1.0), 1.0, never=False)
    assert box.take(GIVE_UP_SECONDS) is None
    assert (box.dropped, len(box)) == (1, 0)
    box.put(alert("A"), 0.0)
    box.failed(message(box, 1.0), 1.0, never=True)
    assert (box.dropped, len(box), box.take(100.0)) == (2, 0, None)


@pytest.mark.parametrize("last", ["info", "critical"])
def test_a_full_outbox_drops_the_oldest_info_first(last: str) -> None:
    box = Grouping(ALL, most=2)
    box.put(alert("Worst"), 0.0)
    box.put(alert("Old", severity="info"), 0.1)
    box.put(alert("New", severity=last), 0.2)
    assert {one.alert for one in message(box, 2.0).alerts} == {"Worst", "New"}
    assert box.dropped == 1
