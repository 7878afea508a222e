"""The settings that all sinks have: which alerts they send."""

from typing import Annotated, Literal

from pydantic import BeforeValidator

from trackside_daemon.config.section import Section
from trackside_daemon.model.setting_types import Texts, setting


def _off(value: object) -> object:
    """Return ``off`` where YAML has read it as false."""
    return "off" if value is False else value


LeastSeverity = Annotated[Literal["info", "warning", "critical", "off"], BeforeValidator(_off)]


class SinkSection(Section):
    """Selection of the alerts that a sink sends."""

    severity: LeastSeverity = setting(
        "Minimum severity of the alerts to send: info, warning, critical; off for none.", "warning"
    )
    also: Texts = setting(
        "Alerts to send although they are less severe.",
        ("RunStarted", "RunFinished", "RunRestarted"),
        examples=["RunStarted,RunFinished"],
    )
