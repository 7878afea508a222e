"""Rules for the machine, its containers, file systems and ports, for the processes of a training, and for Ray.

| alert | why this threshold |
|---|---|
| HostMemoryPressure | below 5 % and 16 GiB the kernel drops caches that it needs; jobs that requested nearly all memory stay there for days, so critical only if for two minutes all processes also wait for memory a tenth of the time |
| IoBottleneck | for five minutes, all processes wait for I/O a fifth of the time, so steps wait too |
| CpuSaturated | for five minutes, something waits for a CPU half of the time: the data loader or the rank; or a container reached its CPU limit in a quarter of the periods |
| ContainerMemoryPressure | near the limit, with less than 16 GiB left, without cached files, which fill every container in the end and which the kernel drops before it kills a process: a warning after five minutes, critical if for two minutes a tenth of the time is also lost waiting for memory, as on the host; warning: the same time lost near the limit with caches |
| OomKilled | the kernel killed a process; if it was a rank or a worker, another alert reports that, so info |
| DiskFilling | less than 5 % and 100 GB are free for five minutes; or the trend of the last hour reaches 0 within four hours. The trend needs less than 40 % free, so that one large file does not count as a trend; or the next checkpoint, of the size of the last one, does not fit |
| FilesystemDead | no answer for ten seconds is a warning, as from a network mount whose server is gone; a slow one answers sooner; critical after two minutes, since a server that fails over answers again after 30 to 90 seconds |
| InfinibandDegraded | a port has been down for a minute and was up since its driver was loaded, as its counter of lost links tells, or within the last hour where there is no such counter; or its link went down in the last ten minutes, which should never happen |
| ShmFull | a data loader worker that finds /dev/shm full dies of SIGBUS, so fire at nine tenths of the peak |
| FdsExhausted | at the limit the next file or socket fails, so fire at nine tenths |
| DataLoaderDied | one death is enough: the rank fails at its next batch |
| RayNodeDead | a node ended in the last ten minutes without having been stopped; Ray starts its actors again elsewhere, or waits |
| RayObjectStoreFull | near its size, the store writes objects to disk, which makes every task slow |
| RayActorsRestarting | one restart heals a fault; several in ten minutes are a fault that comes again |

Every cgroup with a limit counts as a container. Read-only file systems are always full, and /dev/shm has a separate alert. A
port that was never up has no cable and raises no alert. The daemon merges the ranks of a run into one alert, which names the
first rank and counts the others.
"""

from dataclasses import replace

from trackside_daemon.alerts.rules.query import Matcher, Query
from trackside_daemon.alerts.rules.rule import Rule
from trackside_daemon.alerts.settings import ThresholdsSection
from trackside_daemon.model.families import cgroup, host, infiniband, process, ray
from trackside_daemon.model.families import training as f
from trackside_daemon.model.metric import Metric

MINUTE, LONG, LATELY, HOUR = 60.0, 300.0, 600.0, 3600.0

CGROUP = ("cgroup",)
MOUNT = ("mountpoint", "fstype")
PORT = ("device", "port")
RANK = ("run", "rank")
ACTIVE = 3.5  # a port with a lower state carries no data

NOT_SHM = (Matcher("mountpoint", "/dev/shm", "!="),)  # noqa: S108  only named
WRITABLE = Query(host.FILESYSTEM_READONLY, below=0.5)
TREND_FREE_RATIO = 0.4
RUNS = Query(
    f.STATE, (Matcher("state", "starting|running|stalled", "=~"),), above=0.5
)  # those that are alive on the machine


def rules(thresholds: ThresholdsSection) -> dict[str, list[Rule]]:
    """Return the rules by subsystem in the order of the table, those of containers behind those of the host."""
    return {
        "host": [*_host(thresholds), *_container(thresholds)],
        "infiniband": _infiniband(),
        "disk": _disk(thresholds),
        "process": [*_process(thresholds), *_ray(thresholds)],
    }


def _host(thresholds: ThresholdsSection) -> list[Rule]:
    def rate(family: Metric, above: float) -> Query:
        return Query(family, function="rate", window=MINUTE, above=above)

    available, stalled = host.MEMORY_AVAILABLE, rate(host.MEMORY_STALLED, thresholds.host_memory_stalled_ratio)
    floor = Query(available, below=thresholds.host_memory_bytes)
    low = Query(available, over=Query(host.MEMORY), below=thresholds.host_memory_ratio, only=(floor,))
    return [
        Rule(
            "HostMemoryPressure",
            "critical",
            replace(low, only=(floor, stalled)),
            "only {value:percent} of the host's memory is available, all processes wait for it, and the OOM killer is near",
            lasting=2 * MINUTE,
            keep_firing=MINUTE,
        ),
        Rule(
            "HostMemoryPressure",
            "warning",
            low,
            "only {value:percent} of the host's memory is available, for 5 min already",
            lasting=LONG,
            keep_firing=MINUTE,
        ),
        Rule(
            "HostMemoryPressure",
            "warning",
            replace(stalled, unless=(low,)),
            "all processes waited for memory in {value:percent} of the last {window}",
            keep_firing=MINUTE,
            variant="stalled",
        ),
        Rule(
            "IoBottleneck",
            "warning",
            rate(host.IO_STALLED, thresholds.io_stalled_ratio),
            "all processes waited for I/O in {value:percent} of the last {window}, for 5 min already",
            lasting=LONG,
            keep_firing=MINUTE,
            of_run=RUNS,
        ),
        Rule(
            "CpuSaturated",
            "warning",
            rate(host.CPU_WAITING, thresholds.cpu_waiting_ratio),
            "a process waited for a CPU in {value:percent} of the last {window}, for 5 min already",
            lasting=LONG,
            keep_firing=MINUTE,
            of_run=RUNS,
        ),
    ]


def _container(thresholds: ThresholdsSection) -> list[Rule]:
    limit, most, stalled = Query(cgroup.LIMIT), thresholds.container_memory_ratio, thresholds.host_memory_stalled_ratio
    waits = Query(cgroup.WAITING, (Matcher("resource", "memory"),), "rate", MINUTE, above=stalled)
    room = Query(cgroup.LIMIT, minus=Query(cgroup.UNRECLAIMABLE), on=CGROUP, below=thresholds.host_memory_bytes)
    periods = Query(cgroup.PERIODS, (), "rate", MINUTE)
    throttled = thresholds.cpu_throttled_ratio
    return [
        Rule(
            "ContainerMemoryPressure",
            "critical",
            Query(cgroup.UNRECLAIMABLE, over=limit, on=CGROUP, above=most, only=(room, waits)),
            "the cgroup {cgroup} uses {value:percent} of its memory limit without caches and waits for memory, "
            "and the OOM killer is near",
            lasting=2 * MINUTE,
            keep_firing=MINUTE,
            variant="held",
        ),
        Rule(
            "ContainerMemoryPressure",
            "warning",
            Query(cgroup.LIMIT_USED, over=limit, on=CGROUP, above=most, only=(waits,)),
            "the cgroup {cgroup} uses {value:percent} of its memory limit with caches, and something in it waits for memory",
            lasting=30.0,
            keep_firing=MINUTE,
            variant="stalled",
        ),
        Rule(
            "ContainerMemoryPressure",
            "warning",
            Query(cgroup.UNRECLAIMABLE, over=limit, on=CGROUP, above=most, only=(room,)),
            "the cgroup {cgroup} uses {value:percent} of its memory limit without caches, for 5 min already",
            lasting=LONG,
            keep_firing=MINUTE,
            variant="full",
        ),
        Rule(
            "CpuSaturated",
            "warning",
            Query(cgroup.THROTTLED_PERIODS, (), "rate", MINUTE, over=periods, on=CGROUP, above=throttled),
            "the cgroup {cgroup} reached its CPU limit in {value:percent} of its periods, for 5 min already",
            lasting=LONG,
            keep_firing=MINUTE,
            variant="container",
            of_run=RUNS,
        ),
        Rule(
            "OomKilled",
            "info",
            Query(cgroup.OOM_KILLS, (), "change", LATELY, above=0.0),
            "the OOM killer killed {value:whole} processes of the cgroup {cgroup} in the last {window}",
        ),
    ]


def _disk(thresholds: ThresholdsSection) -> list[Rule]:
    available, size = host.FILESYSTEM_AVAIL, Query(host.FILESYSTEM_SIZE)
    floor = Query(available, below=thresholds.disk_bytes)
    trending = (WRITABLE, Query(available, over=size, on=MOUNT, below=TREND_FREE_RATIO))
    ahead = thresholds.disk_full_in
    return [
        Rule(
            "DiskFilling",
            "warning",
            Query(available, NOT_SHM, over=size, on=MOUNT, below=thresholds.disk_ratio, only=(WRITABLE, floor)),
            "{mountpoint} has {value:percent} of its space left",
            lasting=LONG,
            keep_firing=MINUTE,
        ),
        Rule(
            "DiskFilling",
            "warning",
            Query(available, NOT_SHM, "predict", HOUR, ahead, on=MOUNT, below=0.0, only=trending),
            "{mountpoint} will be full within hours at the rate of the last hour",
            lasting=600.0,
            keep_firing=600.0,
            variant="trend",
        ),
        Rule(
            "DiskFilling",
            "warning",
            Query(f.CHECKPOINT_ROOM, below=1.0),
            "the next checkpoint of run {run} does not fit: {directory} has room for {value:percent} of it",
            lasting=5.0,
            keep_firing=30.0,
            variant="checkpoint",
            of_run=RUNS,
        ),
        Rule(
            "FilesystemDead",
            "critical",
            Query(host.FILESYSTEM_DEVICE_ERROR, above=0.5),
            "the file system at {mountpoint} has not answered for 2 min",
            lasting=2 * MINUTE,
        ),
        Rule(
            "FilesystemDead",
            "warning",
            Query(host.FILESYSTEM_DEVICE_ERROR, above=0.5),
            "the file system at {mountpoint} does not answer",
            lasting=10.0,
        ),
    ]


def _infiniband() -> list[Rule]:
    was_up = (Query(infiniband.COUNTERS["link_downed"], above=0.5),)
    return [
        Rule(
            "InfinibandDegraded",
            "warning",
            Query(infiniband.STATE, on=PORT, below=ACTIVE, only=was_up),
            "port {port} of {device} is down, and was up since the driver was loaded",
            lasting=MINUTE,
            variant="down",
        ),
        Rule(
            "InfinibandDegraded",
            "warning",
            Query(infiniband.STATE, (), "change", HOUR, on=PORT, below=-0.5, unless=was_up),
            "port {port} of {device} is down, and was up within the last {window}",
            lasting=MINUTE,
            variant="lately",
        ),
        Rule(
            "InfinibandDegraded",
            "warning",
            Query(infiniband.COUNTERS["link_downed"], (), "change", LATELY, by=PORT, above=0.0),
            "the link of port {port} of {device} went down {value:whole} times in the last {window}",
            variant="flaps",
        ),
    ]


def _process(thresholds: ThresholdsSection) -> list[Rule]:
    deaths = Query(process.WORKER_DEATHS, (), "change", LATELY, fresh=True, by=(*RANK, "cause"), above=0.0)
    return [
        Rule(
            "ShmFull",
            "warning",
            Query(f.SHM_PEAK, over=Query(f.SHM_SIZE), on=RANK, by=RANK, above=thresholds.shm_ratio),
            "/dev/shm was {value:percent} full, as rank {rank} of {run} sees it",  # noqa: S108  only named
            keep_firing=MINUTE,
            of_run=RUNS,
        ),
        Rule(
            "FdsExhausted",
            "warning",
            Query(f.OPEN_FDS, over=Query(f.MAX_FDS), on=RANK, by=RANK, above=thresholds.fds_ratio),
            "rank {rank} of {run} has {value:percent} of its file descriptors open",
            lasting=30.0,
            of_run=RUNS,
        ),
        Rule(
            "DataLoaderDied",
            "critical",
            deaths,
            "data loader workers of rank {rank} of {run} died: {cause}, {value:whole} in the last {window}",
            of_run=RUNS,
        ),
    ]


def _ray(thresholds: ThresholdsSection) -> list[Rule]:
    size, full = Query(ray.STORE_SIZE), thresholds.ray_object_store_ratio
    return [
        Rule(
            "RayNodeDead",
            "warning",
            Query(ray.DEATHS, (), "change", LATELY, above=0.0),
            "{value:whole} nodes of Ray ended unexpectedly in the last {window}",
        ),
        Rule(
            "RayObjectStoreFull",
            "warning",
            Query(ray.STORE_USED, over=size, on=("ray_node",), above=full),
            "the object store of Ray's node {ray_node} is {value:percent} full",
            lasting=MINUTE,
            keep_firing=MINUTE,
        ),
        Rule(
            "RayActorsRestarting",
            "warning",
            Query(ray.RESTARTS, (), "change", LATELY, above=thresholds.ray_actor_restarts),
            "Ray restarted actors {value:whole} times in the last {window}",
        ),
    ]
