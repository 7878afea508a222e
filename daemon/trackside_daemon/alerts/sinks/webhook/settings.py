"""The settings of the webhook sink."""

from pydantic import SecretStr

from trackside_daemon.alerts.sinks.sink_settings import SinkSection
from trackside_daemon.model.setting_types import setting


class WebhookSection(SinkSection):
    """A receiver of the JSON that Alertmanager's webhooks send."""

    url: SecretStr = setting("URL for messages in the JSON of Alertmanager's webhooks; never shown.", SecretStr(""))
    url_file: str = setting("File with that URL.", "")
    bearer_file: str = setting("File with a bearer token.", "")
    headers_file: str = setting("File with further headers, one NAME: VALUE per line.", "")
    ca_file: str = setting("Certificates of trusted authorities, in PEM.", "")

    @property
    def is_configured(self) -> bool:
        """True if there is a URL."""
        return bool(self.url_file or self.url.get_secret_value())
