"""The settings of sampling."""

from typing import Annotated

from pydantic import Field

from trackside_daemon.config.section import Section
from trackside_daemon.model.setting_types import Seconds, setting


class SampleSection(Section):
    """Sampling of GPUs and host."""

    interval: Annotated[Seconds, Field(ge=0.1, le=300)] = setting("Time between two samples of GPUs and host.", 1.0)
