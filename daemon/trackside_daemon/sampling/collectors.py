"""All collectors of one daemon, in the order in which they are run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trackside_daemon.collectors.cgroup.cgroup import CgroupCollector
from trackside_daemon.collectors.host.host import host_collectors
from trackside_daemon.collectors.process.ranks import RanksCollector

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trackside_daemon.collectors.base import Collector
    from trackside_daemon.collectors.gpu.gpu import GpuCollector
    from trackside_daemon.collectors.settings import CollectorsSection, PathSection
    from trackside_daemon.model.rank_process import RankProcess

PROC = Path("/proc")
"""Where this machine's processes are, by the pids that connections tell."""


def collectors(
    on: CollectorsSection,
    path: PathSection,
    directory: Path,
    members: Callable[[], Sequence[RankProcess]],
    *,
    process: Collector,
    gpu: GpuCollector,
    counts: Collector,
) -> list[Collector]:
    """Those that are on.

    Args:
        on: Which are on, and their settings.
        path: Where the host's files are.
        directory: Where the history is; its file system is shown.
        members: The processes of this machine that train.
        process: Made already, as are *gpu* and *counts*: others ask them, too.
        gpu: The GPUs'.
        counts: That of what NVML did.
    """
    ranks = RanksCollector(lambda: gpu.seen.gpus, members, others=on.ranks.others)
    built: list[tuple[bool, Collector]] = [
        (on.cgroup.enabled, CgroupCollector(members, PROC, Path(path.sysfs))),
        (on.process.enabled, process),
        (on.gpu.enabled, gpu),
        (on.gpu.enabled, counts),
        (on.ranks.enabled, ranks),
    ]
    own = (str(directory.absolute()),) if path.rootfs == "/" else ()
    host = host_collectors(on, path, (*on.filesystem.paths, *own))
    return [*host, *(collector for enabled, collector in built if enabled)]
