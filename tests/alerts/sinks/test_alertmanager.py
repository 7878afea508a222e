"""The Alertmanager sink with Debian's Alertmanager."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from alerts.sinks.alert_records import alert, batch, notification_of, over
from processes import eventually, http
from receivers import Alertmanager, Receiver

from trackside_daemon.alerts.delivery.delivery import Delivery
from trackside_daemon.alerts.sinks.alertmanager import sink as outbox
from trackside_daemon.alerts.sinks.alertmanager.settings import AlertmanagerSection
from trackside_daemon.alerts.sinks.alertmanager.sink import alertmanager_sinks
from trackside_daemon.alerts.sinks.sink import DaemonInfo, SinkError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trackside_daemon.model.records import AlertNote

ABOUT = DaemonInfo("node1", "http://127.0.0.1:1/", "https://host/alerts.md")


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    one = Receiver()
    yield one
    one.stop()


@pytest.fixture
def alertmanager(tmp_path: Path, receiver: Receiver) -> Iterator[Alertmanager]:
    one = Alertmanager(tmp_path, receiver)
    yield one
    one.stop()


@pytest.fixture
def deliver() -> Iterator[Callable[..., Delivery]]:
    """A function that starts a delivery to Alertmanagers and returns it."""
    made: list[Delivery] = []

    def start(*urls: str, notes: list[AlertNote] | None = None, fired: Any = (), **more: Any) -> Delivery:
        section = AlertmanagerSection.model_validate({"urls": urls, **more})
        made.append(Delivery(alertmanager_sinks(section, ABOUT), (notes if notes is not None else []).append))
        made[-1].restore(fired)
        made[-1].start()
        return made[-1]

    yield start
    for one in made:
        one.stop()


def active(alertmanager: Alertmanager) -> list[dict[str, Any]]:
    found = http.get(f"{alertmanager.url}/api/v2/alerts").json()
    return [one for one in found if one["status"]["state"] == "active"]


def test_an_alert_arrives_with_all_labels_is_recorded_and_resolved(
    alertmanager: Alertmanager,
    receiver: Receiver,
    deliver: Callable[..., Delivery],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outbox, "MIN_FIRING_SECONDS", 0.0)
    notes: list[AlertNote] = []
    delivery = deliver(alertmanager.url, notes=notes, labels="cluster=a")
    nan = alert(started=time.time() - 10.25)
    delivery.accept(batch(nan))
    fired = receiver.wait()[0].json
    (one,) = fired["alerts"]
    assert (fired["status"], one["labels"]) == (
        "firing",
        {
            "alertname": "TracksideNonFinite",
            "severity": "critical",
            "run": "name-id",
            "rank": "0",
            "key": "loss",
            "instance": "node1",
            "cluster": "a",
        },
    )
    assert one["annotations"] == {
        "summary": "NonFinite on rank 0",
        "description": "look",
        "runbook_url": "https://host/alerts.md#nonfinite",
        "dashboard_url": "http://127.0.0.1:1/runs/id",
    }
    assert one["generatorURL"] == "http://127.0.0.1:1/"
    (kept,) = active(alertmanager)
    assert kept["endsAt"] > kept["updatedAt"]
    assert [(note.alert, note.notified) for note in eventually(lambda: notes)] == [
        ("NonFinite", {"alertmanager": notification_of(nan)})
    ]
    delivery.accept(batch(replace(nan, ended=time.time())))
    resolved = receiver.wait(2)[1].json
    assert (resolved["status"], resolved["alerts"][0]["startsAt"]) == ("resolved", one["startsAt"])


def test_alertmanager_notifies_of_an_alert_that_ends_at_once(
    alertmanager: Alertmanager,
    receiver: Receiver,
    deliver: Callable[..., Delivery],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outbox, "MIN_FIRING_SECONDS", 2.0)  # longer than its group_wait of 0.1 s
    delivery = deliver(alertmanager.url)
    nan = alert(started=time.time() - 0.5)
    delivery.accept(batch(nan, replace(nan, ended=time.time())))
    assert [one.json["status"] for one in receiver.wait(2)] == ["firing", "resolved"]


def test_after_a_restart_it_is_the_same_alert_without_a_new_notification(
    alertmanager: Alertmanager, receiver: Receiver, deliver: Callable[..., Delivery]
) -> None:
    nan = alert(started=time.time() - 10.25)
    first = deliver(alertmanager.url)
    first.accept(batch(nan))
    receiver.wait()
    (before,) = active(alertmanager)
    first.stop()
    again = deliver(alertmanager.url, fired=[replace(nan, notified={"alertmanager": notification_of(nan)})])
    eventually(lambda: active(alertmanager)[0]["updatedAt"] > before["updatedAt"])
    (after,) = active(alertmanager)
    assert (after["startsAt"], after["labels"]) == (before["startsAt"], before["labels"])
    again.accept(batch(alert("Later", run="other", started=time.time() - 1)))
    assert [one.json["groupLabels"]["run"] for one in receiver.wait(2)] == ["name-id", "name-other"]


def test_a_peer_that_is_down_delays_no_other_and_receives_the_alert_later(
    alertmanager: Alertmanager, receiver: Receiver, deliver: Callable[..., Delivery]
) -> None:
    down = Receiver(503)
    port, url = down.port, down.url
    down.stop()
    delivery = deliver(url, alertmanager.url)
    delivery.accept(batch(alert(started=time.time())))
    receiver.wait()
    name = f"alertmanager:127.0.0.1:{port}"
    eventually(lambda: delivery.statuses()[name]["failed"])
    assert delivery.statuses()[name]["last_error"] == f"{url} cannot be reached: connection refused"
    up = Receiver(port=port)
    try:
        assert up.wait()[0].json[0]["labels"]["alertname"] == "TracksideNonFinite"
        eventually(lambda: delivery.statuses()[name]["last_error"] == "")
    finally:
        up.stop()


def test_a_password_is_sent_to_the_server_and_nowhere_else(
    receiver: Receiver, deliver: Callable[..., Delivery], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secret = tmp_path / "password"
    secret.write_text("hush\n")
    receiver.answers = [401, 200]
    delivery = deliver(receiver.url, username="ada", password_file=str(secret))
    delivery.accept(batch(alert()))
    eventually(lambda: delivery.statuses()["alertmanager"]["failed"])
    answered = f"{delivery.statuses()} {delivery.samples()} {caplog.text}"
    assert "answered 401 Unauthorized; check the token, or the user and the password" in answered
    delivery.accept(batch(over(alert())))
    assert "hush" not in answered
    assert "YWRhOmh1c2g" not in answered


def test_a_missing_file_is_an_error_of_one_line(tmp_path: Path) -> None:
    for setting in ("password_file", "bearer_file", "ca_file"):
        section = AlertmanagerSection.model_validate(
            {"urls": "http://a", "username": "ada", setting: str(tmp_path / "no")}
        )
        with pytest.raises(SinkError, match=f"^alerts.sinks.alertmanager.{setting.replace('_', '-')}: .*no such file"):
            alertmanager_sinks(section, ABOUT)
