"""The settings of the webhook sink."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, SecretStr

from trackside_daemon.alerts.sinks.sink_settings import SinkSection


class WebhookSection(SinkSection):
    """A receiver of the JSON that Alertmanager's webhooks send."""

    url: Annotated[
        SecretStr,
        Field(description="URL to which messages are posted, in the JSON of Alertmanager's webhooks; never shown."),
    ] = SecretStr("")
    url_file: Annotated[str, Field(description="File with that URL.")] = ""
    bearer_file: Annotated[str, Field(description="File with a bearer token.")] = ""
    headers_file: Annotated[str, Field(description="File with further headers, one NAME: VALUE per line.")] = ""
    ca_file: Annotated[str, Field(description="Certificates of trusted authorities, in PEM.")] = ""

    @property
    def is_configured(self) -> bool:
        """True if there is a URL."""
        return bool(self.url_file or self.url.get_secret_value())
