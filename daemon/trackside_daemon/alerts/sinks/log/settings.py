"""The settings of the log sink."""

from trackside_daemon.alerts.sinks.sink_settings import LeastSeverity
from trackside_daemon.config.section import Section
from trackside_daemon.model.setting_types import setting


class LogSinkSection(Section):
    """The sink that logs alerts."""

    severity: LeastSeverity = setting(
        "Minimum severity of the alerts to log: info, warning, critical; off for none.", "info"
    )
