"""The settings of captures."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trackside_daemon.config.section import Section
from trackside_daemon.model.capture_limits import MAX_STEPS
from trackside_daemon.model.setting_types import Naturals


class PlanSection(Section):
    """A plan of profiles of every run that has none of its own."""

    steps: Annotated[
        int, Field(ge=0, le=MAX_STEPS, description="Number of optimizer steps to profile as planned; 0 for no plan.")
    ] = 0
    warmup: Annotated[
        int, Field(ge=0, description="Number of steps between the begin of an epoch, or of the run, and the profile.")
    ] = 0
    epochs: Annotated[
        Naturals,
        Field(description="The epochs to profile, as pushed; without any, the run is profiled once.", examples=["1,5"]),
    ] = ()
    shapes: Annotated[bool, Field(description="Record the shapes of operators' inputs.")] = False
    stacks: Annotated[bool, Field(description="Record Python functions.")] = False
    memory: Annotated[bool, Field(description="Record allocations.")] = False


class CaptureSection(Section):
    """Captures: profiles, stacks and memory snapshots of runs."""

    auto: Annotated[
        bool,
        Field(
            description="Record a run that becomes slow, loses memory or diverges, and once while it is healthy, to compare; the recorded steps are slower."
        ),
    ] = False
    kineto: Annotated[
        bool,
        Field(
            description="Serve the socket at which PyTorch asks for profiles; see docs/captures.md for the environment of a training."
        ),
    ] = True
    plan: PlanSection = PlanSection()
    plans: Annotated[
        Literal["own", "all"],
        Field(
            description="Whose runs may plan profiles, with trackside.init(profile=...): own are those of the daemon's user."
        ),
    ] = "own"
    quota_run_mib: Annotated[
        int,
        Field(ge=1, description="Maximum size of a run's captures in MiB; automatic ones go first, then the oldest."),
    ] = 512
    quota_mib: Annotated[int, Field(ge=1, description="Maximum size of all captures in MiB; likewise.")] = 4096
