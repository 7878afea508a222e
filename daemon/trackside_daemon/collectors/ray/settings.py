"""The settings of the Ray collector."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trackside_daemon.collectors.collector_settings import CollectorSection
from trackside_daemon.collectors.ray.dashboard import ADDRESS


class RaySection(CollectorSection):
    """The Ray collector."""

    enabled: Annotated[
        bool, Field(description="Turn the collector on or off; on the command line, --[no-]collector.NAME.")
    ] = False
    dashboard: Annotated[
        str, Field(description="URL of Ray's dashboard, which runs on the head node; empty to read local nodes alone.")
    ] = ADDRESS
