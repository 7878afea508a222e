"""The collectors of the host, of which each reads one subject of /proc or /sys."""

from __future__ import annotations

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
    """Those that are on.

    Args:
        on: What is on, and how.
        path: Where the host's files are.
        paths: Whose file systems are shown.
    """
    proc, sys, root = Path(path.procfs), Path(path.sysfs), Path(path.rootfs)
    every: list[tuple[bool, Collector]] = [
        (on.cpu.enabled, CpuCollector(proc, per_cpu=on.cpu.per_cpu)),
        (on.load.enabled, LoadCollector(proc)),
        (on.memory.enabled, MemoryCollector(proc)),
        (on.vmstat.enabled, VmstatCollector(proc)),
        (on.pressure.enabled, PressureCollector(proc)),
        (on.disk.enabled, DiskCollector(proc, on.disk.exclude)),
        (on.filesystem.enabled, FilesystemCollector(paths, proc, root)),
        (on.network.enabled, NetworkCollector(proc, sys, on.network.exclude)),
        (on.infiniband.enabled, InfinibandCollector(sys)),
        (on.time.enabled, TimeCollector(proc)),
        (on.thermal.enabled, ThermalCollector(sys)),
    ]
    return [collector for enabled, collector in every if enabled]
