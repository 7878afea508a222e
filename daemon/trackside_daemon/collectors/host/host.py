"""List the collectors of the host, each of which reads one subject of /proc or /sys."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from trackside_daemon.collectors.host.cpu import CpuCollector
from trackside_daemon.collectors.host.disk import DiskCollector
from trackside_daemon.collectors.host.filesystem.filesystem import FilesystemCollector
from trackside_daemon.collectors.host.infiniband import InfinibandCollector
from trackside_daemon.collectors.host.load import LoadCollector
from trackside_daemon.collectors.host.memory import MemoryCollector
from trackside_daemon.collectors.host.network import NetworkCollector
from trackside_daemon.collectors.host.pressure import PressureCollector
from trackside_daemon.collectors.host.thermal import ThermalCollector
from trackside_daemon.collectors.host.time import TimeCollector
from trackside_daemon.collectors.host.vmstat import VmstatCollector

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trackside_daemon.collectors.base import Collector
    from trackside_daemon.collectors.settings import CollectorsSection, PathSection


def host_collectors(on: CollectorsSection, path: PathSection, paths: Sequence[str]) -> list[Collector]:
    """Return the collectors that the configuration enables; those of psutil on systems without /proc.

    Args:
        on: The enabled collectors and their settings.
        path: Paths of the host's files.
        paths: Paths whose file systems are shown.
    """
    proc = Path(path.procfs)
    sysfs = Path(path.sysfs)
    root = Path(path.rootfs)
    if not has_procfs(proc):
        from trackside_daemon.collectors.host.portable import portable_collectors  # imports psutil, which costs 1 MiB

        return portable_collectors(on, paths)
    every: list[tuple[bool, Collector]] = [
        (on.cpu.enabled, CpuCollector(proc, per_cpu=on.cpu.per_cpu)),
        (on.load.enabled, LoadCollector(proc)),
        (on.memory.enabled, MemoryCollector(proc)),
        (on.vmstat.enabled, VmstatCollector(proc)),
        (on.pressure.enabled, PressureCollector(proc)),
        (on.disk.enabled, DiskCollector(proc, on.disk.exclude)),
        (on.filesystem.enabled, FilesystemCollector(paths, proc, root)),
        (on.network.enabled, NetworkCollector(proc, sysfs, on.network.exclude)),
        (on.infiniband.enabled, InfinibandCollector(sysfs)),
        (on.time.enabled, TimeCollector(proc)),
        (on.thermal.enabled, ThermalCollector(sysfs)),
    ]
    return [collector for enabled, collector in every if enabled]


def has_procfs(proc: Path) -> bool:
    """Return whether the collectors can read *proc*; on Linux always, so that a missing procfs is an error of them."""
    return sys.platform.startswith("linux") or (proc / "stat").exists()
