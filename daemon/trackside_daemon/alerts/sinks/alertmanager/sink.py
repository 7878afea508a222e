"""Sink for an Alertmanager: sends alerts to its API v2, as Prometheus does."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from trackside_daemon.alerts.sinks.alert_json import as_json
from trackside_daemon.alerts.sinks.alertmanager.outbox import AlertmanagerOutbox
from trackside_daemon.alerts.sinks.sink import SinkError
from trackside_daemon.alerts.sinks.sink_filter import SinkFilter
from trackside_daemon.http_client import http_request
from trackside_daemon.http_client.errors import SendError

if TYPE_CHECKING:
    from trackside_daemon.alerts.sinks.alertmanager.settings import AlertmanagerSection
    from trackside_daemon.alerts.sinks.sink import DaemonInfo, Message

ENDS_SECONDS = 300.0  # seconds after which Alertmanager ends an alert that is not resent

SETTING = "alerts.sinks.alertmanager"


class AlertmanagerSink:
    """Sink for one Alertmanager; each peer of a cluster is a separate sink with separate retries.

    Args:
        section: The settings.
        url: One of their URLs.
        daemon: This daemon.

    Raises:
        SinkError: A file of the settings cannot be used.
    """

    def __init__(self, section: AlertmanagerSection, url: str, daemon: DaemonInfo) -> None:
        several = len(section.urls) > 1
        self.name = (
            f"alertmanager:{http_request.without_secrets(url).partition('//')[2]}" if several else "alertmanager"
        )
        self.filter = SinkFilter(section.severity, section.also)
        self._section = section
        self._url = url.rstrip("/") + "/api/v2/alerts"
        self._daemon = daemon
        self._labels = {name: value for name, _, value in (label.partition("=") for label in section.labels)}
        self._trust = http_request.tls_context(section.ca_file, f"{SETTING}.ca-file")
        # Check the files now, so that a wrong path is an error at the start and not at the first alert.
        self._headers()

    def outbox(self) -> AlertmanagerOutbox:
        """See `Sink`."""
        return AlertmanagerOutbox(self.filter)

    def send(self, message: Message) -> None:
        """See `Sink`."""
        try:
            headers = self._headers()
        except SinkError as error:
            raise SendError(str(error), "later") from None
        http_request.post(self._url, json.dumps(self._body(message)).encode(), headers, self._trust)

    def _body(self, message: Message) -> list[dict[str, Any]]:
        ends = time.time() + ENDS_SECONDS
        return [
            as_json(alert, self._daemon, ends if alert.ended is None else alert.ended, self._labels)
            for alert in message.alerts
        ]

    def _headers(self) -> dict[str, str]:
        """Return the headers; secrets are read again each time, because they may change while the daemon runs."""
        section = self._section
        if section.bearer_file:
            return {"Authorization": http_request.bearer_header(section.bearer_file, f"{SETTING}.bearer-file")}
        if section.username:
            setting = f"{SETTING}.password-file"
            password = http_request.read_secret_line(section.password_file, setting) if section.password_file else ""
            return {"Authorization": http_request.basic_header(section.username, password)}
        return {}


def alertmanager_sinks(section: AlertmanagerSection, daemon: DaemonInfo) -> list[AlertmanagerSink]:
    """Return a sink for each configured URL.

    Raises:
        SinkError: See `AlertmanagerSink`.
    """
    return [AlertmanagerSink(section, url, daemon) for url in dict.fromkeys(section.urls)]
