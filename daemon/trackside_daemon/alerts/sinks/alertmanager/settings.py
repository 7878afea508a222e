"""The settings of the Alertmanager sink."""

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator

from trackside_daemon.alerts.sinks.sink_settings import SinkSection
from trackside_daemon.model.setting_types import Texts, setting


def _servers(urls: tuple[str, ...]) -> tuple[str, ...]:
    for url in urls:
        try:
            parts = urlsplit(url)
            _ = parts.port
        except ValueError:
            parts = urlsplit("")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError("each must be http://HOST:PORT of an Alertmanager, or https://")
        if parts.username is not None:
            raise ValueError("no user and password in an address; set username and password-file")
    return urls


def _labels(labels: tuple[str, ...]) -> tuple[str, ...]:
    for label in labels:
        name, _, value = label.partition("=")
        if not (name.isidentifier() and name.isascii()) or not value or name in ("alertname", "severity"):
            raise ValueError("each must be NAME=VALUE, such as cluster=a; NAME cannot be alertname or severity")
    return labels


class AlertmanagerSection(SinkSection):
    """Alertmanagers, for machines without a Prometheus that evaluates rules."""

    urls: Annotated[Texts, AfterValidator(_servers)] = setting(
        "Alertmanagers, as http://HOST:PORT: all peers of a cluster, no load balancer.",
        (),
        examples=["http://127.0.0.1:9093"],
    )
    labels: Annotated[Texts, AfterValidator(_labels)] = setting(
        "Further labels of alerts, such as cluster=a.", (), examples=["cluster=a,team=ml"]
    )
    username: str = setting("User of Alertmanager's basic authentication.", "")
    password_file: str = setting("File with that user's password.", "")
    bearer_file: str = setting("File with a bearer token.", "")
    ca_file: str = setting("Certificates of trusted authorities, in PEM.", "")
