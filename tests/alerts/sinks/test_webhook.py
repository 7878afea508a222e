"""The webhook: Alertmanager's JSON to a real server, and no word of a secret anywhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from alerts.sinks.alert_records import START, alert, over
from receivers import Receiver

from trackside_daemon.alerts.sinks.sink import DaemonInfo, SinkError, SinkMessage
from trackside_daemon.alerts.sinks.webhook.settings import WebhookSection
from trackside_daemon.alerts.sinks.webhook.sink import MAX_ALERTS_IN_MESSAGE, WebhookSink, body, webhook_sinks
from trackside_daemon.http_client.errors import SendError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ABOUT = DaemonInfo("node1", "http://127.0.0.1:1/", "https://host/alerts.md")
NEWS = SinkMessage("id", (alert(),))


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    one = Receiver()
    yield one
    one.stop()


def webhook(**settings: Any) -> WebhookSink:
    (one,) = webhook_sinks(WebhookSection.model_validate(settings), ABOUT)
    return one


def test_it_is_the_json_of_alertmanager_s_webhooks(receiver: Receiver) -> None:
    webhook(url=f"{receiver.url}/hook").send(NEWS)
    (got,) = receiver.got
    sent = got.json
    assert (got.path, got.headers["Content-Type"]) == ("/hook", "application/json")
    assert (sent["version"], sent["status"], sent["receiver"], sent["truncatedAlerts"]) == (
        *("4", "firing", "trackside"),
        0,
    )
    assert (sent["groupLabels"], sent["externalURL"]) == ({"run": "name-id"}, "http://127.0.0.1:1/")
    (one,) = sent["alerts"]
    assert sent["commonLabels"] == one["labels"]
    assert sent["commonAnnotations"] == one["annotations"]
    assert (one["status"], one["startsAt"], one["endsAt"]) == (
        "firing",
        "2023-11-14T22:13:20.500000Z",
        "0001-01-01T00:00:00Z",
    )
    assert one["labels"]["alertname"] == "TracksideNonFinite"
    assert len(one["fingerprint"]) == 16


def test_the_status_is_that_of_all_sent_alerts() -> None:
    ended = over(alert("SlowStep", severity="warning"))
    mixed = body(SinkMessage("id", (ended,), (alert(),)), ABOUT)
    assert (mixed["status"], [one["status"] for one in mixed["alerts"]]) == ("firing", ["resolved", "firing"])
    resolved = body(SinkMessage("id", (ended,)), ABOUT)
    assert (resolved["status"], resolved["alerts"][0]["endsAt"]) == ("resolved", "2023-11-14T22:15:50.500000Z")
    machine = body(SinkMessage("", (alert("DiskFilling", run=""),)), ABOUT)
    assert (machine["groupLabels"], machine["alerts"][0]["labels"]["subject"]) == ({"instance": "node1"}, "/dev/sda")


def test_a_message_is_bounded_and_counts_the_rest() -> None:
    many = tuple(alert(rank=number, started=START + number) for number in range(MAX_ALERTS_IN_MESSAGE + 7))
    found = body(SinkMessage("id", many), ABOUT)
    assert (len(found["alerts"]), found["truncatedAlerts"]) == (MAX_ALERTS_IN_MESSAGE, 7)


def test_secrets_come_from_files_and_are_read_for_each_message(receiver: Receiver, tmp_path: Path) -> None:
    url, token, headers = tmp_path / "url", tmp_path / "token", tmp_path / "headers"
    url.write_text(f"{receiver.url.replace('//', '//ada:p%40ss@')}/first\n")
    token.write_text("one\n")
    headers.write_text("X-Team: ml\nX-Key: k\n")
    webhook(url_file=str(url), headers_file=str(headers)).send(NEWS)
    sink = webhook(url_file=str(url), bearer_file=str(token), headers_file=str(headers))
    url.write_text(f"{receiver.url}/second")
    token.write_text("two")
    sink.send(NEWS)
    assert [one.path for one in receiver.got] == ["/first", "/second"]
    assert [one.headers["Authorization"] for one in receiver.got] == ["Basic YWRhOnBAc3M=", "Bearer two"]
    assert (receiver.got[1].headers["X-Team"], receiver.got[1].headers["X-Key"]) == ("ml", "k")


@pytest.mark.parametrize(
    ("status", "again", "message"),
    [
        (500, "soon", "answered 500 Internal Server Error"),
        (429, "soon", "answered 429 Too Many Requests"),
        (400, "never", "answered 400 Bad Request; the message is given up"),
        (401, "later", "answered 401 Unauthorized; check the token, or the user and the password"),
        (404, "later", "answered 404 Not Found; check the path of the URL"),
        (302, "later", "answered 302 Found: redirects are not followed; set the URL that it leads to"),
        (599, "soon", "answered 599"),
    ],
)
def test_a_status_code_determines_the_retry_and_the_remedy(
    receiver: Receiver, status: int, again: str, message: str
) -> None:
    receiver.answers = [status]
    with pytest.raises(SendError) as caught:
        webhook(url=f"{receiver.url.replace('//', '//ada:hush@')}/hush?token=hush").send(NEWS)
    assert (caught.value.retry, str(caught.value)) == (again, f"{receiver.url} {message}")
    assert (caught.value.__cause__, caught.value.__suppress_context__) == (None, True)
    assert receiver.tries == 1


def test_an_absent_or_non_http_server_is_named_without_the_path(receiver: Receiver) -> None:
    sink = webhook(url=f"{receiver.url}/hush")
    receiver.stop()
    with pytest.raises(SendError) as caught:
        sink.send(NEWS)
    assert str(caught.value) == f"{receiver.url} cannot be reached: connection refused"
    assert caught.value.retry == "soon"


@pytest.mark.parametrize(
    "url", ["hush", "ftp://hush", "http://", "http://host:hush/", "http://host/hu sh", "http://hüsh/", "http://[hush"]
)
def test_an_invalid_address_is_rejected_and_not_shown(url: str) -> None:
    with pytest.raises(SinkError) as caught:
        webhook(url=url)
    assert str(caught.value) == "alerts.sinks.webhook.url: not a URL such as http://HOST:PORT/PATH"


def test_an_unusable_file_is_an_error_of_one_line(tmp_path: Path, receiver: Receiver) -> None:
    bad, empty = tmp_path / "bad", tmp_path / "empty"
    bad.write_text("hush\nhush")
    empty.touch()
    wrong = {
        ("url_file", bad): f"url-file: {bad}: the file must have exactly one line",
        ("url_file", empty): f"url-file: {empty}: the file is empty",
        ("bearer_file", tmp_path): f"bearer-file: {tmp_path}: is a directory; name a file that the daemon can read",
        ("headers_file", bad): f"headers-file: {bad}: line 1 is not NAME: VALUE",
        ("ca_file", bad): f"ca-file: {bad}: ",
    }
    for (setting, path), message in wrong.items():
        with pytest.raises(SinkError) as caught:
            webhook(**{"url": receiver.url, setting: str(path)})
        assert str(caught.value).startswith(f"alerts.sinks.webhook.{message}")
        assert "hush" not in str(caught.value)


def test_a_missing_secret_is_logged_and_the_message_retried(tmp_path: Path, receiver: Receiver) -> None:
    token = tmp_path / "token"
    token.write_text("one")
    sink = webhook(url=receiver.url, bearer_file=str(token))
    token.unlink()
    with pytest.raises(SendError, match=r"bearer-file: .*no such file or directory") as caught:
        sink.send(NEWS)
    assert caught.value.retry == "later"


def test_without_an_address_there_is_no_webhook() -> None:
    assert webhook_sinks(WebhookSection(), ABOUT) == []
