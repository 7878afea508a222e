"""The settings of all sinks: add a line here and one in `registry` for a new one."""

from typing import ClassVar

from trackside_daemon.alerts.sinks.alertmanager.settings import AlertmanagerSection
from trackside_daemon.alerts.sinks.apprise.settings import AppriseSection
from trackside_daemon.alerts.sinks.log.settings import LogSinkSection
from trackside_daemon.alerts.sinks.webhook.settings import WebhookSection
from trackside_daemon.config.section import Section
from trackside_daemon.model.setting_types import setting


class SinksSection(Section):
    """Notifications of alerts."""

    secret: ClassVar[bool] = True

    log: LogSinkSection = LogSinkSection.model_construct()
    alertmanager: AlertmanagerSection = AlertmanagerSection.model_construct()
    webhook: WebhookSection = WebhookSection.model_construct()
    apprise: AppriseSection = AppriseSection.model_construct()
    runbook_url: str = setting(
        "Page of runbooks, such as https://HOST/alerts.md; anchors are alerts' names in lower case.", ""
    )
