"""The settings of the apprise sink."""

from trackside_daemon.alerts.sinks.sink_settings import SinkSection
from trackside_daemon.model.setting_types import setting


class AppriseSection(SinkSection):
    """E-mail, Slack, Discord, ntfy, PagerDuty and others, by their apprise URLs."""

    urls_file: str = setting(
        "File with apprise URLs (e-mail, Slack, ntfy, …), one per line, # begins a comment; needs trackside[apprise].",
        "",
    )
