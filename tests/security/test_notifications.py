"""Notifications: a text of a training mentions no person and links nowhere in a service that reads mark-up."""

from __future__ import annotations

import io
import json
import shutil
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

import pytest
from alerts.sinks.alert_records import alert
from deploy.test_alertmanager import NONFINITE, _to, rendered
from end_to_end.alertmanager import Alertmanager
from end_to_end.inbox import Inbox
from processes import eventually

from trackside_daemon.alerts.sinks.apprise.settings import AppriseSection
from trackside_daemon.alerts.sinks.apprise.sink import apprise_sinks
from trackside_daemon.alerts.sinks.sink import DaemonInfo, SinkMessage

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore:.*imghdr:DeprecationWarning")  # apprise's own

MARKUP = (
    "<!channel>",
    "!channel>",
    "!here|all >",
    "<@U024BE7LH>",
    "<https://evil.example|the dashboard>",
    "https://evil.example|the dashboard>",
    "[the dashboard](https://evil.example)",
    "@everyone",
    "<@123>",
    "<@&456>",
    "<b onclick=x>",
)
TEXT = " ".join(MARKUP)
PLAIN = "loss 3 > 2, gradient < 1 & done"
"""What must stay as it is."""

SERVICES = {
    "slack": "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/#general",
    "discord": "discord://4174216298/JHMHI8qBe7bk2ZwO5U711o3dV_js",
    "discord with Markdown": "discord://4174216298/JHMHI8qBe7bk2ZwO5U711o3dV_js?format=markdown",
    "mattermost": "mmost://localhost/3ccdd113474722377935511fc85d3dd4",
    "telegram": "tgram://123456789:abcdefg_hijklmnop/12315544/",
    "telegram with HTML": "tgram://123456789:abcdefg_hijklmnop/12315544/?format=html",
}


def sent(url: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the bodies that apprise would send for an alert whose texts all have mark-up."""
    import requests

    bodies: list[str] = []

    def post(self: requests.Session, method: str, url: str, **given: Any) -> requests.Response:
        data = given.get("data") or json.dumps(given.get("json"))
        bodies.append(data.decode() if isinstance(data, bytes) else str(data))
        response = requests.Response()
        response.status_code = 200
        response.raw = io.BytesIO(b"ok")
        return response

    monkeypatch.setattr(requests.Session, "request", post)
    file = directory / "urls"
    file.write_text(url)
    (sink,) = apprise_sinks(AppriseSection(urls_file=str(file)), DaemonInfo("node1"))
    sink.send(SinkMessage("id", (alert(run=TEXT, summary=f"{PLAIN} {TEXT}", description=TEXT),)))
    (body,) = bodies
    return json.dumps(json.loads(body), ensure_ascii=False)


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_of_apprise_gets_neither_mentions_nor_links(
    service: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = sent(SERVICES[service], tmp_path, monkeypatch)
    assert [one for one in (*MARKUP, "<!", "<@", "<http", "](http", "<b ") if one in body] == []
    assert "allow_mentions" not in body
    assert "loss 3 " in body
    assert "everyone" in body, "the text itself is still there"


def test_ordinary_comparisons_stay(tmp_path: Path) -> None:
    from trackside_daemon.alerts.sinks.apprise import sink as message_text

    text = message_text.body(SinkMessage("id", (alert(summary=PLAIN),)), DaemonInfo("node1"))
    assert PLAIN in text


@pytest.mark.skipif(shutil.which("amtool") is None, reason="amtool is not installed")
@pytest.mark.parametrize("template", ["trackside.title", "trackside.text"])
def test_the_templates_of_alertmanager_render_no_mention(template: str, tmp_path: Path) -> None:
    labels = {"alertname": "TracksideUserAlert", "run": TEXT, "key": TEXT, "rank": TEXT, "subject": TEXT}
    annotations = {"summary": f"{PLAIN} {TEXT}", "description": TEXT}
    one = {"status": "firing", "labels": labels, "annotations": annotations, "startsAt": "2026-01-02T03:04:05Z"}
    for common in ({"run": TEXT}, {}):
        shown = {"status": "firing", "commonLabels": common, "groupLabels": {"mountpoint": TEXT, "x": TEXT}}
        text = rendered(template, [one], tmp_path, **shown)
        assert [begin for begin in ("<!", "<@", "<http", "<b") if begin in text] == []
        assert PLAIN in text


@pytest.mark.skipif(shutil.which("prometheus-alertmanager") is None, reason="prometheus-alertmanager is not installed")
def test_alertmanager_sends_slack_no_mention(tmp_path: Path) -> None:
    with closing(Inbox()) as inbox, ExitStack() as ends:
        running = Alertmanager(tmp_path, _to(inbox, tmp_path))
        ends.callback(running.stop)
        running.post({**NONFINITE, "run": TEXT, "@summary": TEXT, "@description": TEXT})
        slack = eventually(lambda: inbox.of("slack"))[0].body["attachments"][0]
    assert "everyone" in slack["title"]
    for name in ("title", "text", "fallback"):
        assert [begin for begin in ("<!", "<@", "<http", "<b") if begin in slack[name]] == []
