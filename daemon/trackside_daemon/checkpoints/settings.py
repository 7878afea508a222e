"""The settings of checkpoints."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trackside_daemon.config.section import Section
from trackside_daemon.model.setting_types import AbsolutePaths, Seconds


class CheckpointSection(Section):
    """The audit of checkpoints."""

    audit: Annotated[
        bool, Field(description="Read the checkpoints of runs on this machine, and report those that are damaged.")
    ] = True
    directories: Annotated[
        AbsolutePaths,
        Field(
            description="Directories of checkpoints that no training reports; {run} in them is a run's name.",
            examples=["/checkpoints/{run}"],
        ),
    ] = ()
    rate_mb: Annotated[
        float, Field(gt=0, le=1e6, description="Megabytes per second that an audit reads at most, at idle priority.")
    ] = 200.0
    again: Annotated[
        Seconds, Field(ge=60, description="Time after which a checkpoint is read again, to see damage that came later.")
    ] = 86400.0
    values: Annotated[bool, Field(description="Also search safetensors for NaN and infinities.")] = False
