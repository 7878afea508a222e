"""The settings that all sinks have: which alerts they send."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from trackside_daemon.config.section import Section
from trackside_daemon.model.setting_types import Texts


def _off(value: object) -> object:
    """Return ``off`` where YAML has read it as false."""
    return "off" if value is False else value


LeastSeverity = Annotated[Literal["info", "warning", "critical", "off"], BeforeValidator(_off)]


class SinkSection(Section):
    """Selection of the alerts that a sink sends."""

    severity: Annotated[
        LeastSeverity,
        Field(description="Minimum severity of the alerts to send: info, warning, critical; off for none."),
    ] = "warning"
    also: Annotated[
        Texts,
        Field(description="Alerts to send although they are less severe.", examples=["RunStarted,RunFinished"]),
    ] = (
        "RunStarted",
        "RunFinished",
        "RunRestarted",
    )
