"""The settings that all mirrors have."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trackside_daemon.config.section import Section
from trackside_daemon.model.setting_types import Seconds


class MirrorSection(Section):
    """Selection of the samples that a mirror sends."""

    interval: Annotated[
        Seconds, Field(ge=0.1, le=3600, description="Time between two searches for new samples in the history.")
    ] = 5.0
    ranks: Annotated[
        Literal["lowest", "all"],
        Field(description="lowest or all; the keys of other ranks than the lowest end in /rank_N."),
    ] = "lowest"

    @property
    def is_configured(self) -> bool:
        """True if there is a target."""
        return False
