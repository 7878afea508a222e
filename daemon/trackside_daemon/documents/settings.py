"""The settings of reports."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trackside_daemon.config.section import Section


class ReportsSection(Section):
    """Reports that the daemon writes at the end of each run."""

    path: Annotated[
        str,
        Field(
            description="Directory for a report of each run at its end, as RUN.html; the daemon deletes none of them. "
            "Empty for no reports.",
            examples=["/srv/trackside/reports"],
        ),
    ] = ""
