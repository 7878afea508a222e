"""Settings of the GPU readings from NVML."""

from typing import Literal

from pydantic import ValidationInfo, field_validator

from trackside_daemon.config.section import Section
from trackside_daemon.model.setting_types import Texts, setting
from trackside_daemon.nvml.simulation.faults import faults_by_gpu


class NvmlSection(Section):
    """Settings of the readings from NVML, or of their simulation."""

    extra: Texts = setting(
        "Groups of readings beyond the default ones, such as links,engines; or all.", (), examples=["links,engines"]
    )
    skip: Texts = setting("Groups of readings to leave out, such as processes.", (), examples=["processes,clock"])
    expected: int = setting("Number of GPUs that should be present; 0 for the most seen since the start.", 0, ge=0)
    whole: bool = setting(
        "Expect all GPUs on the PCI bus in a container too, which then has to see all of them.", False
    )
    simulate: int = setting("Show that many simulated GPUs instead of real ones.", 0, ge=0, le=64)
    profile: Literal["h100", "a100", "l40s"] = setting("Model of the simulated GPUs: h100, a100 or l40s.", "h100")
    trouble: Texts = setting(
        "Faults of the simulated GPUs: hot, throttled, xid or lost. Each affects the last GPU unless followed by :INDEX.",
        (),
        examples=["hot,lost:2"],
    )

    @field_validator("extra", "skip")
    @classmethod
    def _groups_exist(cls, names: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        from trackside_daemon.nvml.reader_groups import GROUPS  # every reader of NVML: rarely needed

        valid = [*GROUPS, "all"] if info.field_name == "extra" else [*GROUPS]
        for name in names:
            if name not in valid:
                raise ValueError(f"no group {name!r}; there are {', '.join(valid)}")
        return names

    @field_validator("trouble")
    @classmethod
    def _faults_have_a_gpu(cls, faults: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        faults_by_gpu(faults, info.data.get("simulate", 0))
        return faults
