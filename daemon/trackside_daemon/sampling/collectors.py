"""List all collectors of one daemon, in the order in which they run."""

from collections.abc import Callable, Sequence
from pathlib import Path

from trackside_daemon.collectors.base import Collector
from trackside_daemon.collectors.cgroup.cgroup import CgroupCollector
from trackside_daemon.collectors.foreign import ForeignFamilies
from trackside_daemon.collectors.gpu.gpu import GpuCollector
from trackside_daemon.collectors.host.host import has_procfs, host_collectors
from trackside_daemon.collectors.process.ranks import RanksCollector
from trackside_daemon.collectors.settings import CollectorsSection, PathSection
from trackside_daemon.collectors.textfile import TextfileCollector
from trackside_daemon.model.rank_process import RankProcess

PROC = Path("/proc")  # procfs of the daemon's own pid namespace: connections report pids of that namespace


def collectors(
    on: CollectorsSection,
    path: PathSection,
    directory: Path,
    rank_processes: Callable[[], Sequence[RankProcess]],
    *,
    process: Collector,
    gpu: GpuCollector,
    nvml: Collector,
    foreign: ForeignFamilies,
) -> list[Collector]:
    """Return the collectors that the configuration enables.

    Args:
        on: The enabled collectors and their settings.
        path: Paths of the host's files.
        directory: The history's directory; its file system is shown too.
        rank_processes: Returns the processes of this machine that train.
        process: The process collector; the daemon has it already, like *gpu* and *nvml*, because other parts read it too.
        gpu: The collector of GPU readings.
        nvml: The collector of GPU counts and NVML calls.
        foreign: The names of other programs' families.
    """
    ranks = RanksCollector(lambda: gpu.snapshot.gpus, rank_processes, others=on.ranks.others)
    linux = has_procfs(PROC)
    # The order matters: `nvml` and `ranks` use the GPUs that `gpu` reads in the same tick.
    built: list[tuple[bool, Collector]] = [
        (on.cgroup.enabled and linux, CgroupCollector(rank_processes, PROC, Path(path.sysfs))),
        (on.process.enabled and linux, process),
        (on.gpu.enabled, gpu),
        (on.gpu.enabled, nvml),
        (on.ranks.enabled, ranks),
        (on.textfile.enabled and bool(on.textfile.directory), TextfileCollector(on.textfile.directory, foreign)),
    ]
    if on.kubelet.enabled:
        from trackside_daemon.collectors.gpu.pod_owners import PodOwnersCollector  # in Kubernetes alone

        built.append((True, PodOwnersCollector(Path(on.kubelet.socket), lambda: gpu.snapshot.gpus)))
    if on.ray.enabled and linux:
        from trackside_daemon.collectors.ray.ray import RayCollector  # with a TLS context, of 3 MiB

        built.append((True, RayCollector(on.ray.dashboard, on.ray.token_file)))
    # With another root, the history's path belongs to the container and not to the host.
    history_path = (str(directory.absolute()),) if path.rootfs == "/" else ()
    host = host_collectors(on, path, (*on.filesystem.paths, *history_path))
    return [*host, *(collector for enabled, collector in built if enabled)]
