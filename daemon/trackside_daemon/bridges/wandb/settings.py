"""The settings of the mirror to W&B."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trackside_daemon.bridges.mirrors.mirror_settings import MirrorSection


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

    @property
    def is_configured(self) -> bool:
        """See `MirrorSection`."""
        return bool(self.project)
