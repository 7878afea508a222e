"""The settings of the log as a sink."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trackside_daemon.alerts.sinks.sink_settings import LeastSeverity  # noqa: TC001  pydantic reads it
from trackside_daemon.config.sections import Section


class LogSinkSection(Section):
    """The log."""

    severity: Annotated[
        LeastSeverity, Field(description="Log alerts from this severity on: info, warning, critical; off for none.")
    ] = "info"
