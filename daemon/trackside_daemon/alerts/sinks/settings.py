"""The settings of all sinks: a new one is a line here and one in `known`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trackside_daemon.alerts.sinks.alertmanager.settings import AlertmanagerSection
from trackside_daemon.alerts.sinks.apprise.settings import AppriseSection
from trackside_daemon.alerts.sinks.log.settings import LogSinkSection
from trackside_daemon.alerts.sinks.webhook.settings import WebhookSection
from trackside_daemon.config.sections import Section


class SinksSection(Section):
    """How people are told of alerts."""

    log: LogSinkSection = LogSinkSection()
    alertmanager: AlertmanagerSection = AlertmanagerSection()
    webhook: WebhookSection = WebhookSection()
    apprise: AppriseSection = AppriseSection()
    runbook_url: Annotated[
        str,
        Field(
            description="Where runbooks are, such as https://HOST/alerts.md; the alert's name in small letters is the anchor."
        ),
    ] = ""
