"""The settings of the collectors of ranks and processes."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trackside_daemon.collectors.collector_settings import CollectorSection


class ProcessSection(CollectorSection):
    """The collector of the training's processes."""

    smaps: Annotated[
        bool,
        Field(
            description="Read the ranks' smaps_rollup each minute, for unique and proportional memory; it can halt a large training for seconds."
        ),
    ] = False


class RanksSection(CollectorSection):
    """The collector of ranks and of the processes on GPUs."""

    others: Annotated[bool, Field(description="Show others' processes on the GPUs, by name and user.")] = True
