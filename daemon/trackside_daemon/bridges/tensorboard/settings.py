"""The settings of the mirror to event files."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trackside_daemon.bridges.mirrors.mirror_settings import MirrorSection


class TensorboardSection(MirrorSection):
    """Event files for TensorBoard."""

    directory: Annotated[
        str,
        Field(description="Directory in which each run gets a directory with event files; for tensorboard --logdir."),
    ] = ""

    @property
    def is_configured(self) -> bool:
        """See `MirrorSection`."""
        return bool(self.directory)
