"""The settings of checkpoints."""

from typing import Annotated

from pydantic import Field

from trackside_daemon.config.section import Section
from trackside_daemon.model.setting_types import AbsolutePaths, Seconds, setting


class CheckpointSection(Section):
    """The audit of checkpoints."""

    audit: bool = setting("Read the checkpoints of runs on this machine, and report damaged ones.", True)
    directories: AbsolutePaths = setting(
        "Directories of checkpoints that no training reports; {run} in them is a run's name.",
        (),
        examples=["/checkpoints/{run}"],
    )
    rate_mb: float = setting("Megabytes per second that an audit reads at most.", 200.0, gt=0, le=1e6)
    again: Annotated[Seconds, Field(ge=60)] = setting(
        "Time after which a checkpoint is read again, to see later damage.", 86400.0
    )
    values: bool = setting("Also search safetensors for NaN and infinities.", False)
