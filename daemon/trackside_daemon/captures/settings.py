"""The settings of captures."""

from typing import Literal

from trackside.limits import PROFILE_STEPS
from trackside_daemon.config.section import Section
from trackside_daemon.model.setting_types import Naturals, setting


class PlanSection(Section):
    """A plan of profiles of every run that has none of its own."""

    steps: int = setting("Number of optimizer steps to profile as planned; 0 for no plan.", 0, ge=0, le=PROFILE_STEPS)
    warmup: int = setting("Number of steps between the begin of an epoch or the run and the profile.", 0, ge=0)
    epochs: Naturals = setting("Epochs to profile, as pushed; by default the run once.", (), examples=["1,5"])
    shapes: bool = setting("Record the shapes of operators' inputs.", False)
    stacks: bool = setting("Record Python functions.", False)
    memory: bool = setting("Record allocations.", False)


class CaptureSection(Section):
    """Captures: profiles, stacks and memory snapshots of runs."""

    auto: bool = setting(
        "Record a run that becomes slow, loses memory or diverges, and once while it is healthy; the recorded steps "
        "are slower.",
        False,
    )
    kineto: bool = setting("Serve the socket at which PyTorch asks for profiles; see docs/captures.md.", True)
    plan: PlanSection = PlanSection.model_construct()
    plans: Literal["own", "all"] = setting(
        "Whose runs may plan profiles with init(profile=...): own are those of the daemon's user.", "own"
    )
    quota_run_mib: int = setting(
        "Maximum size of a run's captures in MiB; automatic ones go first, then the oldest.", 512, ge=1
    )
    quota_mib: int = setting("Maximum size of all captures in MiB; likewise.", 4096, ge=1)
