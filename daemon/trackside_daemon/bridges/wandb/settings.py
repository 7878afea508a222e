"""The settings of the mirror to W&B."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trackside_daemon.bridges.mirrors.mirror_settings import MirrorSection
from trackside_daemon.model.setting_types import Seconds


class WandbSection(MirrorSection):
    """W&B, by its own client; needs trackside[wandb]."""

    project: Annotated[str, Field(description="Project for the runs.")] = ""
    entity: Annotated[str, Field(description="User or team of the project; by default that of the API key.")] = ""
    mode: Annotated[
        Literal["online", "offline"],
        Field(description="online or offline; offline writes logs for wandb sync."),
    ] = "online"
    directory: Annotated[
        str, Field(description="Directory for the client's logs; by default wandb-mirror next to the history.")
    ] = ""

    # Each batch resumes the run, which takes W&B's client a second or two.
    interval: Annotated[
        Seconds, Field(ge=1, le=3600, description="Time between two searches for new samples in the history.")
    ] = 30.0

    @property
    def is_configured(self) -> bool:
        """See `MirrorSection`."""
        return bool(self.project)
