"""Settings of the GPU readings from NVML."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from trackside_daemon.config.section import Section
from trackside_daemon.model.setting_types import Texts
from trackside_daemon.nvml.simulation.faults import faults_by_gpu


class NvmlSection(Section):
    """Settings of the readings from NVML, or of their simulation."""

    extra: Annotated[
        Texts,
        Field(
            description="Groups of readings beyond the default ones, such as links,engines; or all.",
            examples=["links,engines"],
        ),
    ] = ()
    skip: Annotated[
        Texts, Field(description="Groups of readings to leave out, such as processes.", examples=["processes,clock"])
    ] = ()
    expected: Annotated[
        int, Field(ge=0, description="Number of GPUs that should be present; 0 for the most seen since the start.")
    ] = 0
    simulate: Annotated[int, Field(ge=0, le=64, description="Show that many simulated GPUs instead of real ones.")] = 0
    profile: Annotated[
        Literal["h100", "a100", "l40s"], Field(description="Model of the simulated GPUs: h100, a100 or l40s.")
    ] = "h100"
    trouble: Annotated[
        Texts,
        Field(
            description="Faults of the simulated GPUs: hot, throttled, xid or lost. Each affects the last GPU unless followed by :INDEX.",
            examples=["hot,lost:2"],
        ),
    ] = ()

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
