"""List of the sinks; add a new one here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.alerts.sinks.alertmanager.sink import alertmanager_sinks
from trackside_daemon.alerts.sinks.apprise.sink import apprise_sinks
from trackside_daemon.alerts.sinks.log.sink import LogSink
from trackside_daemon.alerts.sinks.webhook.sink import webhook_sinks

if TYPE_CHECKING:
    from trackside_daemon.alerts.sinks.settings import SinksSection
    from trackside_daemon.alerts.sinks.sink import DaemonInfo, Sink


def sinks(section: SinksSection, daemon: DaemonInfo) -> list[Sink]:
    """Return the configured sinks.

    Raises:
        SinkError: One of them is configured wrongly.
    """
    daemon = daemon._replace(runbook=section.runbook_url)
    return [
        LogSink(section.log),
        *alertmanager_sinks(section.alertmanager, daemon),
        *webhook_sinks(section.webhook, daemon),
        *apprise_sinks(section.apprise, daemon),
    ]
