"""List of the sinks; add a new one here."""

from trackside_daemon.alerts.sinks.log.sink import LogSink
from trackside_daemon.alerts.sinks.settings import SinksSection
from trackside_daemon.alerts.sinks.sink import DaemonInfo, Sink


def sinks(section: SinksSection, daemon: DaemonInfo) -> list[Sink]:
    """Return the configured sinks.

    Raises:
        SinkError: One of them is configured wrongly.
    """
    daemon = daemon._replace(runbook=section.runbook_url)
    configured: list[Sink] = [LogSink(section.log)]
    # Only these need an HTTP client, so a daemon without them does not import one.
    if section.alertmanager.urls:
        from trackside_daemon.alerts.sinks.alertmanager.sink import alertmanager_sinks

        configured += alertmanager_sinks(section.alertmanager, daemon)
    if section.webhook.is_configured:
        from trackside_daemon.alerts.sinks.webhook.sink import webhook_sinks

        configured += webhook_sinks(section.webhook, daemon)
    if section.apprise.urls_file:
        from trackside_daemon.alerts.sinks.apprise.sink import apprise_sinks

        configured += apprise_sinks(section.apprise, daemon)
    return configured
