"""The settings that all sinks have: of which alerts they tell."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from trackside_daemon.config.sections import Section
from trackside_daemon.model.setting_types import Texts  # noqa: TC001  pydantic reads it


def _off(value: object) -> object:
    """YAML reads ``off`` as false."""
    return "off" if value is False else value


LeastSeverity = Annotated[Literal["info", "warning", "critical", "off"], BeforeValidator(_off)]


class SinkSection(Section):
    """Of which alerts a sink tells."""

    severity: Annotated[
        LeastSeverity, Field(description="Tell of alerts from this severity on: info, warning, critical; off for none.")
    ] = "warning"
    also: Annotated[Texts, Field(description="Alerts that are told too though they are less severe.")] = (
        "RunStarted",
        "RunFinished",
        "RunRestarted",
    )
