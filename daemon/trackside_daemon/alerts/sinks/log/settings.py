"""The settings of the log sink."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trackside_daemon.alerts.sinks.sink_settings import LeastSeverity
from trackside_daemon.config.section import Section


class LogSinkSection(Section):
    """The sink that logs alerts."""

    severity: Annotated[
        LeastSeverity,
        Field(description="Minimum severity of the alerts to log: info, warning, critical; off for none."),
    ] = "info"
