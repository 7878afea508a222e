"""The settings of captures."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trackside_daemon.config.section import Section


class CaptureSection(Section):
    """Captures: profiles, stacks and memory snapshots of runs."""

    auto: Annotated[
        bool,
        Field(
            description="Profile some steps when a run becomes slow, and once while it is healthy, for comparison; recording slows these steps down."
        ),
    ] = False
    kineto: Annotated[
        bool,
        Field(
            description="Serve the socket at which PyTorch asks for profiles; see docs/captures.md for the environment of a training."
        ),
    ] = True
    quota_run_mib: Annotated[
        int,
        Field(ge=1, description="Maximum size of a run's captures in MiB; automatic ones go first, then the oldest."),
    ] = 512
    quota_mib: Annotated[int, Field(ge=1, description="Maximum size of all captures in MiB; likewise.")] = 4096
