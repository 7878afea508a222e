"""Alerts go to an Alertmanager by its API v2, as a Prometheus sends them."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from trackside_daemon.alerts.sinks import http_post
from trackside_daemon.alerts.sinks.alert_json import as_json
from trackside_daemon.alerts.sinks.alertmanager.outbox import Standing
from trackside_daemon.alerts.sinks.sink import SendError, SinkError
from trackside_daemon.alerts.sinks.sink_filter import Wants

if TYPE_CHECKING:
    from trackside_daemon.alerts.sinks.alertmanager.settings import AlertmanagerSection
    from trackside_daemon.alerts.sinks.sink import About, Message

ENDS_SECONDS = 300.0
"""Alertmanager takes an alert to be over when it has not heard of it for so long."""

SETTING = "alerts.sinks.alertmanager"


class AlertmanagerSink:
    """One Alertmanager: each peer of a cluster is a sink of its own, with its own tries.

    Args:
        section: The settings.
        url: One of those.
        about: The daemon.

    Raises:
        SinkError: A file that is named cannot be used.
    """

    def __init__(self, section: AlertmanagerSection, url: str, about: About) -> None:
        several = len(section.urls) > 1
        self.name = f"alertmanager:{http_post.shown(url).partition('//')[2]}" if several else "alertmanager"
        self.wants = Wants(section.severity, section.also)
        self._section = section
        self._url = url.rstrip("/") + "/api/v2/alerts"
        self._about = about
        self._more = {name: value for name, _, value in (one.partition("=") for one in section.labels)}
        self._trust = http_post.trust(section.ca_file, f"{SETTING}.ca-file")
        self._headers()

    def outbox(self) -> Standing:
        """See `Sink`."""
        return Standing(self.wants)

    def send(self, message: Message) -> None:
        """See `Sink`."""
        try:
            headers = self._headers()
        except SinkError as error:
            raise SendError(str(error), "later") from None
        http_post.post(self._url, json.dumps(self._body(message)).encode(), headers, self._trust)

    def _body(self, message: Message) -> list[dict[str, Any]]:
        ends = time.time() + ENDS_SECONDS
        return [
            as_json(alert, self._about, ends if alert.ended is None else alert.ended, self._more)
            for alert in message.alerts
        ]

    def _headers(self) -> dict[str, str]:
        """Read anew each time, since secrets are changed while the daemon runs."""
        of = self._section
        if of.bearer_file:
            return {"Authorization": http_post.bearer(of.bearer_file, f"{SETTING}.bearer-file")}
        if of.username:
            password = http_post.one_line(of.password_file, f"{SETTING}.password-file") if of.password_file else ""
            return {"Authorization": http_post.basic(of.username, password)}
        return {}


def alertmanagers(section: AlertmanagerSection, about: About) -> list[AlertmanagerSink]:
    """One for each that is named.

    Raises:
        SinkError: See `AlertmanagerSink`.
    """
    return [AlertmanagerSink(section, url, about) for url in dict.fromkeys(section.urls)]
