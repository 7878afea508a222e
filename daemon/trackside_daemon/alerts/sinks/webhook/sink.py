"""Sink that posts the JSON of Alertmanager's webhooks, version 4, so that existing receivers work."""

import json
import time
from hashlib import sha256
from typing import Any

from trackside_daemon.alerts.sinks.group_outbox import GroupOutbox, as_json
from trackside_daemon.alerts.sinks.sink import DaemonInfo, SinkError, SinkFilter, SinkMessage
from trackside_daemon.alerts.sinks.webhook.settings import WebhookSection
from trackside_daemon.http_client import http_request
from trackside_daemon.http_client.errors import SendError
from trackside_daemon.model.records import Alert

VERSION = "4"

MAX_ALERTS_IN_MESSAGE = 100  # most alerts in a message; further ones are counted in it
NO_END = "0001-01-01T00:00:00Z"  # end of a firing alert in Alertmanager's JSON

SETTING = "alerts.sinks.webhook"


class WebhookSink:
    """See `trackside_daemon.alerts.sinks.sink.Sink`.

    Args:
        section: The settings; secrets are read again for each message, because they may change while the daemon runs.
        daemon: This daemon.

    Raises:
        SinkError: A file of the settings cannot be used, or has no URL.
    """

    def __init__(self, section: WebhookSection, daemon: DaemonInfo) -> None:
        self.name = "webhook"
        self.filter = SinkFilter(section.severity, section.also)
        self._section = section
        self._daemon = daemon
        self._trust = http_request.tls_context(section.ca_file, f"{SETTING}.ca-file")
        # Check the files now, so that a wrong path is an error at the start and not at the first alert.
        self._url()
        self._headers()

    def outbox(self) -> GroupOutbox:
        """See `Sink`."""
        return GroupOutbox(self.filter)

    def send(self, message: SinkMessage) -> None:
        """See `Sink`."""
        try:
            url, headers = self._url(), self._headers()
        except SinkError as error:
            raise SendError(str(error), "later") from None
        http_request.post(url, json.dumps(body(message, self._daemon)).encode(), headers, self._trust)

    def _url(self) -> str:
        section = self._section
        setting = f"{SETTING}.url-file" if section.url_file else f"{SETTING}.url"
        url = (
            http_request.read_secret_line(section.url_file, setting)
            if section.url_file
            else section.url.get_secret_value()
        )
        try:
            http_request.without_secrets(url)
        except ValueError as error:
            raise SinkError(f"{setting}: {error}") from None
        return url

    def _headers(self) -> dict[str, str]:
        section = self._section
        headers = http_request.read_headers(section.headers_file, f"{SETTING}.headers-file")
        if section.bearer_file:
            headers["Authorization"] = http_request.bearer_header(section.bearer_file, f"{SETTING}.bearer-file")
        return headers


def webhook_sinks(section: WebhookSection, daemon: DaemonInfo) -> list[WebhookSink]:
    """Return one sink if a URL is configured.

    Raises:
        SinkError: See `WebhookSink`.
    """
    return [WebhookSink(section, daemon)] if section.is_configured else []


def body(message: SinkMessage, daemon: DaemonInfo) -> dict[str, Any]:
    """Return the JSON of a message: the new alerts and those that still fire, so that the status is that of the group."""
    alerts = [*message.alerts, *message.others]
    sent = [_alert(alert, daemon) for alert in alerts[:MAX_ALERTS_IN_MESSAGE]]
    run = next((alert.labels["run"] for alert in alerts if "run" in alert.labels), "")
    group = {"run": run} if run else {"instance": daemon.instance}
    return {
        "version": VERSION,
        "groupKey": f"trackside/{daemon.instance}:{{run={json.dumps(message.group)}}}",
        "truncatedAlerts": len(alerts) - len(sent),
        "status": "firing" if any(alert.ended is None for alert in alerts) else "resolved",
        "receiver": "trackside",
        "groupLabels": group,
        "commonLabels": _common([alert["labels"] for alert in sent]),
        "commonAnnotations": _common([alert["annotations"] for alert in sent]),
        "externalURL": daemon.url,
        "alerts": sent,
    }


def _alert(alert: Alert, daemon: DaemonInfo) -> dict[str, Any]:
    fields = as_json(alert, daemon, alert.ended or time.time(), {})
    if alert.ended is None:
        fields["endsAt"] = NO_END
    # Receivers identify an alert across messages by its fingerprint.
    fingerprint = sha256(json.dumps(fields["labels"]).encode()).hexdigest()[:16]
    return {"status": "firing" if alert.ended is None else "resolved", **fields, "fingerprint": fingerprint}


def _common(maps: list[dict[str, str]]) -> dict[str, str]:
    """Return the entries that all *maps* share."""
    return {name: value for name, value in maps[0].items() if all(other.get(name) == value for other in maps)}
