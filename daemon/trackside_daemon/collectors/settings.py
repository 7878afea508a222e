"""The settings of all collectors: add a line here for a new one that can be switched off."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trackside_daemon.collectors.collector_settings import CollectorSection
from trackside_daemon.collectors.gpu.settings import GpuSection
from trackside_daemon.collectors.host.settings import (
    CpuSection,
    DiskSection,
    FilesystemSection,
    NetworkSection,
    ThermalSection,
)
from trackside_daemon.collectors.process.settings import ProcessSection, RanksSection
from trackside_daemon.collectors.ray.settings import RaySection
from trackside_daemon.config.section import Section
from trackside_daemon.model.setting_types import AbsolutePath


class PathSection(Section):
    """Directories of the host's files; in a container they may be mounted elsewhere."""

    procfs: Annotated[AbsolutePath, Field(description="Where the host's /proc is.")] = "/proc"
    sysfs: Annotated[AbsolutePath, Field(description="Where the host's /sys is.")] = "/sys"
    rootfs: Annotated[AbsolutePath, Field(description="Where the host's / is.")] = "/"


class CollectorsSection(Section):
    """The collectors, by name."""

    cpu: CpuSection = CpuSection()
    load: CollectorSection = CollectorSection()
    memory: CollectorSection = CollectorSection()
    vmstat: CollectorSection = CollectorSection()
    pressure: CollectorSection = CollectorSection()
    disk: DiskSection = DiskSection()
    filesystem: FilesystemSection = FilesystemSection()
    network: NetworkSection = NetworkSection()
    infiniband: CollectorSection = CollectorSection()
    cgroup: CollectorSection = CollectorSection()
    process: ProcessSection = ProcessSection()
    time: CollectorSection = CollectorSection()
    thermal: ThermalSection = ThermalSection()
    gpu: GpuSection = GpuSection()
    ranks: RanksSection = RanksSection()
    ray: RaySection = RaySection()
