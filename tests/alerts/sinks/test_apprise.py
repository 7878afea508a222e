"""The apprise sink: real messages to a real server, whose URLs are never logged."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from alerts.sinks.alert_records import alert, over
from receivers import Receiver

from trackside_daemon.alerts.sinks.apprise import sink as message_text
from trackside_daemon.alerts.sinks.apprise.settings import AppriseSection
from trackside_daemon.alerts.sinks.apprise.sink import AppriseSink, apprise_sinks
from trackside_daemon.alerts.sinks.sink import DaemonInfo, SinkError, SinkMessage
from trackside_daemon.http_client.errors import SendError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore:.*imghdr:DeprecationWarning")  # apprise's own

ABOUT = DaemonInfo("node1", "http://127.0.0.1:1/", "https://host/alerts.md")


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    one = Receiver()
    yield one
    one.stop()


def apprise(tmp_path: Path, *urls: str) -> list[AppriseSink]:
    file = tmp_path / "urls"
    file.write_text("\n".join(["# ours", *urls, ""]))
    return apprise_sinks(AppriseSection(urls_file=str(file)), ABOUT)


def test_a_message_arrives_in_plain_words(receiver: Receiver, tmp_path: Path) -> None:
    sinks = apprise(tmp_path, f"json://127.0.0.1:{receiver.port}/a", f"json://127.0.0.1:{receiver.port}/b")
    nan, spike = alert(), alert("LossSpike", severity="warning", description="")
    sinks[1].send(SinkMessage("id", (nan, spike), (alert("GpuHot"),)))
    (got,) = receiver.got
    assert (got.path, got.json["title"]) == ("/b", "[firing:2] run name-id: NonFinite, LossSpike")
    assert got.json["message"] == (
        "NonFinite (critical): NonFinite on rank 0\nlook\nhttps://host/alerts.md#nonfinite\n\n"
        "LossSpike (warning): LossSpike on rank 0\nhttps://host/alerts.md#lossspike\n\n"
        "still firing: GpuHot\n\non node1, http://127.0.0.1:1/"
    )
    assert got.json["type"] == "failure"


def test_a_url_retains_its_name_when_others_come_or_its_password_changes(tmp_path: Path) -> None:
    before = [one.name for one in apprise(tmp_path, "json://ada:hush@a", "json://b/hush", "xml://b")]
    after = [one.name for one in apprise(tmp_path, "json://new", "json://b/hush", "xml://b", "json://ada:hushed@a")]
    assert set(before) < set(after)
    assert len(set(after)) == 4
    assert [name.rpartition(":")[0] for name in before] == ["apprise:json", "apprise:json", "apprise:xml"]
    twice = [one.name for one in apprise(tmp_path, "json://b", "json://b?to=c")]
    assert twice[1] == f"{twice[0]}:2"


def test_titles_and_texts() -> None:
    many = tuple(alert(f"Alert{number}", run="") for number in range(12))
    assert (
        message_text.title(SinkMessage("", many), ABOUT)
        == "[firing:12] machine node1: Alert0, Alert1, Alert2 and 9 more"
    )
    assert "and 2 more alerts" in message_text.body(SinkMessage("", many), ABOUT)
    resolved = SinkMessage("id", (over(alert()),))
    assert message_text.title(resolved, ABOUT) == "[resolved:1] run name-id: NonFinite"
    assert message_text.body(resolved, DaemonInfo("node1")) == (
        "NonFinite (critical) ended after 2 min 30 s, from 2023-11-14 22:13:20 UTC to 2023-11-14 22:15:50 UTC: "
        "NonFinite on rank 0\n\non node1"
    )


def test_a_failed_service_is_logged_without_its_url(
    receiver: Receiver, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level("DEBUG")
    (sink,) = apprise(tmp_path, f"json://ada:hush@127.0.0.1:{receiver.port}/hush")
    receiver.answers = [500]
    with pytest.raises(SendError) as caught:
        sink.send(SinkMessage("id", (alert(),)))
    receiver.stop()
    with pytest.raises(SendError):
        sink.send(SinkMessage("id", (alert(),)))
    printed = capfd.readouterr()
    assert "hush" not in f"{caught.value} {caplog.text} {printed.out} {printed.err} {sink.name}"


def test_an_invalid_url_is_named_by_its_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for url in ("hush://hush", "hush"):
        with pytest.raises(
            SinkError, match=r"alerts\.sinks\.apprise\.urls-file: .*: line 2 is not a URL that apprise supports$"
        ):
            apprise(tmp_path, url)
    with pytest.raises(SinkError, match="the file has no URL"):
        apprise(tmp_path)
    assert "hush" not in caplog.text


def test_without_the_library_the_error_names_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    with pytest.raises(SinkError, match=r"pip install 'trackside\[apprise\]'"):
        apprise(tmp_path, "json://host")
    assert apprise_sinks(AppriseSection(), ABOUT) == []
