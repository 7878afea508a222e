"""Messages as Alertmanager's webhooks send them, version 4, so that receivers which people have work."""

from __future__ import annotations

import json
import re
import time
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from trackside_daemon.alerts.sinks import http_post
from trackside_daemon.alerts.sinks.alert_json import as_json
from trackside_daemon.alerts.sinks.group_outbox import Grouping
from trackside_daemon.alerts.sinks.sink import SendError, SinkError
from trackside_daemon.alerts.sinks.sink_filter import Wants

if TYPE_CHECKING:
    from trackside_daemon.alerts.sinks.sink import About, Message
    from trackside_daemon.alerts.sinks.webhook.settings import WebhookSection
    from trackside_daemon.model.records import Alert

VERSION = "4"
MOST = 100
"""Alerts in a message; the others are counted in it."""

FIRES = "0001-01-01T00:00:00Z"
"""How Alertmanager writes the end of what has none."""

SETTING = "alerts.sinks.webhook"
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+)\s*:\s*(\S.*)")


class WebhookSink:
    """See `trackside_daemon.alerts.sinks.sink.Sink`.

    Args:
        section: The settings; secrets are read anew for each message, since they are changed while the daemon runs.
        about: The daemon.

    Raises:
        SinkError: A file that is named cannot be used, or there is no URL in it.
    """

    def __init__(self, section: WebhookSection, about: About) -> None:
        self.name = "webhook"
        self.wants = Wants(section.severity, section.also)
        self._section = section
        self._about = about
        self._trust = http_post.trust(section.ca_file, f"{SETTING}.ca-file")
        self._address()
        self._headers()

    def outbox(self) -> Grouping:
        """See `Sink`."""
        return Grouping(self.wants)

    def send(self, message: Message) -> None:
        """See `Sink`."""
        try:
            url, headers = self._address(), self._headers()
        except SinkError as error:
            raise SendError(str(error), "later") from None
        http_post.post(url, json.dumps(body(message, self._about)).encode(), headers, self._trust)

    def _address(self) -> str:
        of = self._section
        setting = f"{SETTING}.url-file" if of.url_file else f"{SETTING}.url"
        url = http_post.one_line(of.url_file, setting) if of.url_file else of.url.get_secret_value()
        try:
            http_post.shown(url)
        except ValueError as error:
            raise SinkError(f"{setting}: {error}") from None
        return url

    def _headers(self) -> dict[str, str]:
        of = self._section
        found = {}
        if of.headers_file:
            for number, line in enumerate(http_post.secret(of.headers_file, f"{SETTING}.headers-file").splitlines(), 1):
                header = _HEADER.fullmatch(line.strip()) if line.isprintable() and line.isascii() else None
                if header is None:
                    raise SinkError(f"{SETTING}.headers-file: {of.headers_file}: line {number} is no NAME: VALUE")
                found[header[1]] = header[2]
        if of.bearer_file:
            found["Authorization"] = http_post.bearer(of.bearer_file, f"{SETTING}.bearer-file")
        return found


def webhooks(section: WebhookSection, about: About) -> list[WebhookSink]:
    """One if there is an address.

    Raises:
        SinkError: See `WebhookSink`.
    """
    return [WebhookSink(section, about)] if section.url_file or section.url.get_secret_value() else []


def body(message: Message, about: About) -> dict[str, Any]:
    """What is posted: what is new, and what fires still, so that the status is the group's."""
    alerts = [*message.alerts, *message.others]
    sent = [_alert(alert, about) for alert in alerts[:MOST]]
    run = next((alert.labels["run"] for alert in alerts if "run" in alert.labels), "")
    group = {"run": run} if run else {"instance": about.instance}
    return {
        "version": VERSION,
        "groupKey": f"trackside/{about.instance}:{{run={json.dumps(message.group)}}}",
        "truncatedAlerts": len(alerts) - len(sent),
        "status": "firing" if any(alert.ended is None for alert in alerts) else "resolved",
        "receiver": "trackside",
        "groupLabels": group,
        "commonLabels": _common([one["labels"] for one in sent]),
        "commonAnnotations": _common([one["annotations"] for one in sent]),
        "externalURL": about.url,
        "alerts": sent,
    }


def _alert(alert: Alert, about: About) -> dict[str, Any]:
    found = as_json(alert, about, alert.ended or time.time(), {})
    if alert.ended is None:
        found["endsAt"] = FIRES
    fingerprint = sha256(json.dumps(found["labels"]).encode()).hexdigest()[:16]
    return {"status": "firing" if alert.ended is None else "resolved", **found, "fingerprint": fingerprint}


def _common(all_: list[dict[str, str]]) -> dict[str, str]:
    """What they all have."""
    return {name: value for name, value in all_[0].items() if all(one.get(name) == value for one in all_)}
