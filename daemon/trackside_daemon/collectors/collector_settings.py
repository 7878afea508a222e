"""The settings that all collectors have."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trackside_daemon.config.section import Section


class CollectorSection(Section):
    """One collector."""

    enabled: Annotated[
        bool, Field(description="Turn the collector on or off; on the command line, --[no-]collector.NAME.")
    ] = True
