"""The settings of the log."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trackside_daemon.config.section import Section


class LogSection(Section):
    """The log, on standard error."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"], Field(description="debug, info, warning or error.")
    ] = "info"
    format: Annotated[Literal["logfmt", "json"], Field(description="logfmt or json.")] = "logfmt"
