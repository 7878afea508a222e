"""Delivery: one thread per sink, retries, ends, restarts, changes of the settings, and the status."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from alerts.sinks.alert_records import START, alert, batch, notification_of, over
from processes import DEADLINE, eventually

from trackside_daemon.alerts.delivery import sink_worker
from trackside_daemon.alerts.delivery import sink_worker as sending
from trackside_daemon.alerts.delivery.delivery import ConfiguredSinks, Delivery
from trackside_daemon.alerts.sinks.group_outbox import GroupOutbox
from trackside_daemon.alerts.sinks.sink import SinkFilter
from trackside_daemon.http_client.errors import SendError
from trackside_daemon.model.families import alerts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trackside_daemon.alerts.sinks.sink import SinkMessage
    from trackside_daemon.model.records import AlertNote


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_worker, "FIRST_SECONDS", 0.01)


class Friend:
    """Sink that stores its messages, fails on request, and blocks on request: with *severe_first*, not on criticals."""

    def __init__(self, name: str = "friend", *failures: BaseException, severity: str = "info") -> None:
        self.name = name
        self.filter = SinkFilter(severity)
        self.failures = list(failures)
        self.received: list[list[tuple[str, bool]]] = []
        self.go = threading.Event()
        self.go.set()
        self.asked = 0
        self.severe_first = False
        self.wait = 0.01

    def outbox(self) -> GroupOutbox:
        return GroupOutbox(self.filter, wait=self.wait)

    def send(self, message: SinkMessage) -> None:
        self.asked += 1
        if not (self.severe_first and any(one.severity == "critical" for one in message.alerts)):
            self.go.wait(DEADLINE)
        if self.failures:
            raise self.failures.pop(0)
        self.received.append([(one.alert, one.ended is None) for one in message.alerts])


@pytest.fixture
def notes() -> list[AlertNote]:
    return []


@pytest.fixture
def started(notes: list[AlertNote]) -> Iterator[Any]:
    """A function that starts a delivery to sinks and returns it."""
    made: list[Delivery] = []

    def start(*sinks: Friend, fired: Any = (), configured: ConfiguredSinks | None = None, **more: float) -> Delivery:
        made.append(Delivery(sinks, notes.append, configured, **more))
        made[-1].restore(fired)
        made[-1].start()
        return made[-1]

    yield start
    for one in made:
        one.stop()


def test_each_notification_is_recorded_at_the_begin_and_at_the_end(started: Any, notes: list[AlertNote]) -> None:
    friend = Friend()
    delivery = started(friend)
    nan = alert()
    delivery.accept(batch(nan))
    (note,) = eventually(lambda: notes)
    assert (note.alert, note.started, note.run, note.labels, note.notified) == (
        *(nan.alert, nan.started, nan.run, nan.labels),
        {"friend": notification_of(nan)},
    )
    delivery.accept(batch(over(nan)))
    delivery.stop()
    assert friend.received == [[("NonFinite", True)], [("NonFinite", False)]], "the end waits for nothing"
    assert [note.notified for note in notes[1:]] == [{"friend": notification_of(over(nan))}]


def test_a_slow_sink_delays_neither_another_sink_nor_the_pipeline(started: Any) -> None:
    slow, quick = Friend("slow"), Friend("quick")
    slow.go.clear()
    delivery = started(slow, quick)
    delivery.accept(batch(alert()))
    eventually(lambda: slow.asked)
    eventually(lambda: quick.received)
    delivery.accept(batch(alert("More", run="other")))
    eventually(lambda: len(quick.received) == 2)
    assert delivery.statuses()["slow"]["queued"] == 2
    slow.go.set()
    eventually(lambda: len(slow.received) == 2)


def test_a_critical_alert_waits_neither_for_a_slow_warning_nor_for_the_retry_of_one(started: Any) -> None:
    friend = Friend("friend", SendError("down", "later"))
    delivery = started(friend)
    delivery.accept(batch(alert("GpuHot", severity="warning", run="a")))
    eventually(lambda: delivery.statuses()["friend"]["failed"] == 1)
    delivery.accept(batch(alert("NonFinite", run="b")))
    eventually(lambda: friend.received == [[("NonFinite", True)]])
    slow = Friend("slow")
    slow.severe_first = True
    slow.go.clear()
    delivery.change([slow])
    delivery.accept(batch(alert("GpuHot", severity="warning", run="c")))
    eventually(lambda: delivery.statuses()["slow"]["sending_since"])
    delivery.accept(batch(alert("NonFinite", run="d")))
    eventually(lambda: [("NonFinite", True)] in slow.received)
    assert [("GpuHot", True)] not in slow.received, "which is being sent still"
    slow.go.set()


def test_a_failed_message_is_retried_and_logged_once(started: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "trackside")
    friend = Friend("friend", *(SendError("http://host answered 503 Service Unavailable") for _ in range(3)))
    delivery = started(friend)
    delivery.accept(batch(alert()))
    eventually(lambda: friend.received)
    eventually(lambda: delivery.statuses()["friend"]["last_error"] == "")
    assert caplog.messages == [
        "alerts.sinks: friend: http://host answered 503 Service Unavailable",
        "alerts.sinks: friend works again",
    ]
    shown = {sample.metric: sample.value for sample in delivery.samples()}
    assert (
        shown[alerts.NOTIFICATIONS],
        shown[alerts.NOTIFICATIONS_FAILED],
        shown[alerts.NOTIFICATIONS_DROPPED],
        shown[alerts.NOTIFICATIONS_QUEUED],
    ) == (4.0, 3.0, 0.0, 0.0)
    assert alerts.NOTIFICATIONS_LAST_SUCCESS in shown


def test_a_message_that_is_rejected_permanently_costs_only_itself(started: Any) -> None:
    friend = Friend("friend", SendError("http://host answered 400 Bad Request", "never"))
    delivery = started(friend)
    delivery.accept(batch(alert()))
    eventually(lambda: delivery.statuses()["friend"]["dropped"] == 1)
    delivery.accept(batch(alert("Next", run="other")))
    eventually(lambda: friend.received == [[("Next", True)]])


@pytest.mark.parametrize("fault", [RuntimeError("https://hooks/hush"), SystemExit("hush")])
def test_a_fault_of_a_sink_costs_one_message_and_is_named_by_its_kind_alone(
    started: Any, caplog: pytest.LogCaptureFixture, fault: BaseException
) -> None:
    friend = Friend("friend", fault)
    delivery = started(friend)
    delivery.accept(batch(alert()))
    eventually(lambda: delivery.statuses()["friend"]["dropped"])
    delivery.accept(batch(alert("Next")))
    eventually(lambda: friend.received == [[("Next", True)]])
    kind = type(fault).__name__
    assert caplog.messages == [f"alerts.sinks: friend: the message cannot be sent, and is given up: {kind}"]


def test_a_sink_that_does_not_return_is_abandoned_and_the_message_retried(
    started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "SEND_SECONDS", 0.3)
    friend = Friend()
    friend.go.clear()
    delivery = started(friend)
    delivery.accept(batch(alert()))
    eventually(lambda: delivery.statuses()["friend"]["sending_since"])
    eventually(lambda: "2 messages hang in the sink" in delivery.statuses()["friend"]["last_error"])
    assert delivery.statuses()["friend"]["failed"] >= 3
    assert friend.asked == 2, "no third is begun"
    friend.go.set()
    eventually(lambda: len(friend.received) == 2)


def test_a_queued_message_is_sent_by_the_sink_of_the_new_settings(started: Any) -> None:
    stuck, better = Friend(), Friend()
    stuck.go.clear()
    delivery = started(stuck)
    delivery.accept(batch(alert()))
    eventually(lambda: stuck.asked)
    delivery.change([better])
    eventually(lambda: better.received == [[("NonFinite", True)]])
    assert not stuck.received
    stuck.go.set()


def configured(path: Path, *sinks: Friend, since: float = START) -> ConfiguredSinks:
    """Return what a daemon reads after another one with these sinks."""
    ConfiguredSinks(path, lambda: since).register(sinks)
    return ConfiguredSinks(path, lambda: START + 1000)


def test_after_a_restart_only_unsent_notifications_are_sent(started: Any, tmp_path: Path) -> None:
    friend, other = Friend(), Friend("other")
    fired = [replace(alert(), notified={"friend": notification_of(alert())}), alert("New", run="")]
    delivery = started(friend, other, fired=fired, configured=configured(tmp_path / "sinks", friend, other))
    eventually(lambda: len(other.received) == 2)
    eventually(lambda: friend.received == [[("New", True)]])
    delivery.judge()  # they have sent all that fires
    delivery.accept(batch(over(alert())))
    delivery.stop()
    assert len(friend.received) == 2
    assert friend.received[-1] == other.received[-1] == [("NonFinite", False)]


def test_an_alert_that_ended_unsent_before_a_restart_is_sent_as_firing_and_then_as_ended(
    started: Any, tmp_path: Path
) -> None:
    friend = Friend()
    fired = [over(alert()), over(alert("GpuHot", severity="warning", run="other"))]
    delivery = started(friend, fired=fired, configured=configured(tmp_path / "sinks", friend))
    eventually(lambda: len(friend.received) >= 2)
    delivery.stop()
    assert friend.received == [[("NonFinite", True)], [("NonFinite", False)]], "an old warning is not worth a message"


@pytest.mark.parametrize("before", [[], [Friend(severity="off")], [Friend("other")]])
def test_a_sink_that_is_configured_later_is_sent_only_what_still_fires(
    started: Any, tmp_path: Path, before: list[Friend]
) -> None:
    friend, path = Friend(), tmp_path / "sinks"
    fired = [over(alert()), alert("TrainingStalled", run="a"), alert("GpuHot", run="b")]
    for _ in range(2):  # a second restart, before anything is sent, changes nothing
        delivery = started(friend, fired=fired, configured=configured(path, *before))
        before = [friend]
        delivery.stop()
    delivery = started(friend, fired=fired, configured=ConfiguredSinks(path))
    delivery.accept(batch(over(fired[1])))
    delivery.judge()
    eventually(lambda: friend.received)
    delivery.stop()
    assert friend.received == [[("GpuHot", True)]]


def test_a_file_about_sinks_that_is_damaged_or_cannot_be_written_is_as_if_it_was_not_there(tmp_path: Path) -> None:
    (tmp_path / "damaged").write_text('{"friend": 3}')
    for path in (tmp_path / "damaged", tmp_path / "absent" / "file", tmp_path):
        one = ConfiguredSinks(path, lambda: START)
        one.register([Friend()])
        assert one.owes("friend", alert())
        assert not one.owes("friend", alert(started=START - 1))


def test_stop_waits_for_queued_messages_but_not_for_a_hanging_sink(started: Any) -> None:
    friend, stuck, down = sinks = Friend(), Friend("stuck"), Friend("down", SendError("down"))
    for sink in sinks:
        sink.wait = 3600.0
    stuck.go.clear()
    delivery = started(*sinks, flush_seconds=0.5)
    delivery.accept(batch(alert()))
    delivery.stop()
    assert (friend.received, stuck.received, down.asked) == ([[("NonFinite", True)]], [], 1)
    stuck.go.set()


def test_new_settings_lose_no_queued_alert_and_send_none_twice(started: Any) -> None:
    friend, reported = Friend("friend", *(SendError("down", "later") for _ in range(9))), Friend("told")
    delivery = started(friend, reported)
    delivery.accept(batch(alert()))
    eventually(lambda: friend.asked and reported.received)
    eventually(lambda: delivery.statuses()["friend"]["failed"])
    better, again, new = Friend("friend"), Friend("told"), Friend("new")
    delivery.change([better, again, new])
    eventually(lambda: better.received and new.received)
    assert delivery.statuses()["friend"]["failed"] == 1
    delivery.accept(batch(over(alert())))
    delivery.stop()
    assert again.received == [[("NonFinite", False)]]
    assert len(reported.received) == 1


def test_a_sink_with_a_new_filter_that_accepts_a_firing_alert_sends_it_once(started: Any) -> None:
    hot, lost = alert("GpuHot", severity="warning"), alert("GpuLost", severity="critical", run="other")
    first = Friend(severity="critical")
    delivery = started(first)
    delivery.accept(batch(hot, lost))
    eventually(lambda: first.received == [[("GpuLost", True)]] and delivery.statuses()["friend"]["sent"] == 1)
    wider = Friend(severity="warning")
    delivery.change([wider])
    eventually(lambda: wider.received)
    delivery.stop()
    assert wider.received == [[("GpuHot", True)]]


def test_a_queued_alert_that_a_new_filter_rejects_is_not_sent(started: Any) -> None:
    down = Friend("friend", *(SendError("down", "later") for _ in range(9)), severity="warning")
    delivery = started(down)
    delivery.accept(batch(alert("GpuHot", severity="warning"), alert(run="other")))
    eventually(lambda: delivery.statuses()["friend"]["failed"])
    narrower = Friend(severity="critical")
    delivery.change([narrower])
    eventually(lambda: narrower.received)
    eventually(lambda: delivery.statuses()["friend"]["queued"] == 0)
    delivery.stop()
    assert narrower.received == [[("NonFinite", True)]]


def test_hanging_messages_are_bounded_across_reloads(started: Any) -> None:
    go = threading.Event()
    stuck = [Friend() for _ in range(6)]
    for one in stuck:
        one.go = go
    delivery = started(stuck[0])
    delivery.accept(batch(alert()))
    eventually(lambda: stuck[0].asked)
    delivery.change([stuck[1]])
    eventually(lambda: stuck[1].asked)
    for failed, one in enumerate(stuck[2:], 1):
        delivery.change([one])
        eventually(lambda failed=failed: delivery.statuses()["friend"]["failed"] == failed)  # type: ignore[misc]
    assert [one.asked for one in stuck] == [1, 1, 0, 0, 0, 0]
    assert "2 messages hang in the sink" in delivery.statuses()["friend"]["last_error"]
    go.set()
