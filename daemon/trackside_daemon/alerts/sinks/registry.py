"""The sinks that there are: the list that a new one is added to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.alerts.sinks.alertmanager.sink import alertmanagers
from trackside_daemon.alerts.sinks.apprise.sink import apprises
from trackside_daemon.alerts.sinks.log.sink import LogSink
from trackside_daemon.alerts.sinks.webhook.sink import webhooks

if TYPE_CHECKING:
    from trackside_daemon.alerts.sinks.settings import SinksSection
    from trackside_daemon.alerts.sinks.sink import About, Sink


def sinks(section: SinksSection, about: About) -> list[Sink]:
    """Those that are configured.

    Raises:
        SinkError: One of them cannot be used.
    """
    about = about._replace(runbook=section.runbook_url)
    return [
        LogSink(section.log),
        *alertmanagers(section.alertmanager, about),
        *webhooks(section.webhook, about),
        *apprises(section.apprise, about),
    ]
