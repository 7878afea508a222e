"""The settings of the apprise sink."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trackside_daemon.alerts.sinks.sink_settings import SinkSection


class AppriseSection(SinkSection):
    """E-mail, Slack, Discord, ntfy, PagerDuty and others, by their apprise URLs."""

    urls_file: Annotated[
        str,
        Field(
            description="File with apprise URLs of e-mail, Slack, ntfy and others, one per line, # begins a comment; needs trackside[apprise]."
        ),
    ] = ""
