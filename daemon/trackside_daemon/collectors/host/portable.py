"""Collect the host's samples through psutil, on systems without /proc such as macOS.

The families are those of the collectors that read /proc, where the values mean the same. Other families are missing:
pressure, faults, hung tasks, the state of network links (psutil's isup differs from operstate), InfiniBand,
temperatures, and the clock's synchronization.
"""

from __future__ import annotations

import os
import re
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psutil

from trackside_daemon.collectors.base import NothingToCollect
from trackside_daemon.collectors.host import cpu, network
from trackside_daemon.model.families import host
from trackside_daemon.model.metric import Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from trackside_daemon.collectors.base import Collector
    from trackside_daemon.collectors.settings import CollectorsSection
    from trackside_daemon.model.metric import Metric

CONTEXT_SWITCHES = host.STAT_NUMBERS[b"ctxt "]

# Families by field of psutil.virtual_memory(); its cached differs from that of /proc/meminfo, as it includes slab.
MEMORY = {
    "total": host.MEMORY,
    "available": host.MEMORY_AVAILABLE,
    "free": host.MEMINFO["MemFree"],
}

# Families by field of psutil.disk_io_counters(); macOS has no busy_time.
DISK = {
    "read_count": host.DISKSTATS[3],
    "read_bytes": host.DISK_READ,
    "read_time": host.DISKSTATS[6],
    "write_count": host.DISKSTATS[7],
    "write_bytes": host.DISK_WRITTEN,
    "write_time": host.DISKSTATS[10],
    "busy_time": host.DISK_BUSY,
}

# Families by field of psutil.net_io_counters().
NETWORK = {
    "bytes_recv": host.NETWORK_RECEIVED,
    "packets_recv": host.NET_DEV[1],
    "errin": host.NET_DEV[2],
    "dropin": host.NET_DEV[3],
    "bytes_sent": host.NETWORK_SENT,
    "packets_sent": host.NET_DEV[9],
    "errout": host.NET_DEV[10],
    "dropout": host.NET_DEV[11],
}


class PortableCollector(NamedTuple):
    """A collector of one subject, with the name of the one that reads /proc.

    Attributes:
        name: Name of the collector.
        metrics: Families that it may return.
        read: Returns the samples.
    """

    name: str
    metrics: tuple[Metric, ...]
    read: Callable[[], list[Sample]]

    def collect(self) -> list[Sample]:
        """Return all current samples."""
        return self.read()


def portable_collectors(on: CollectorsSection, paths: Sequence[str]) -> list[Collector]:
    """Return the enabled collectors of a host without /proc.

    Args:
        on: The enabled collectors and their settings.
        paths: Paths whose file systems are shown.
    """
    room = (
        host.FILESYSTEM_SIZE,
        host.FILESYSTEM_FREE,
        host.FILESYSTEM_AVAIL,
        host.FILESYSTEM_READONLY,
        host.FILESYSTEM_DEVICE_ERROR,
    )
    swap = (host.MEMINFO["SwapTotal"], host.SWAP_USED)
    times = (host.TIME, host.BOOT_TIME, host.UNAME)
    every: list[tuple[bool, PortableCollector]] = [
        (
            on.cpu.enabled,
            PortableCollector(
                "cpu",
                (host.CPU_SECONDS, host.CPU_CORE_SECONDS, host.CPUS, CONTEXT_SWITCHES),
                partial(_cpu, per_cpu=on.cpu.per_cpu),
            ),
        ),
        (on.load.enabled, PortableCollector("load", host.LOADS, _load)),
        (on.memory.enabled, PortableCollector("memory", (*MEMORY.values(), *swap), _memory)),
        (
            on.disk.enabled,
            PortableCollector("disk", tuple(DISK.values()), partial(_disk, on.disk.exclude)),
        ),
        (on.filesystem.enabled, PortableCollector("filesystem", room, partial(_filesystem, tuple(paths)))),
        (
            on.network.enabled,
            PortableCollector(
                "network", (*NETWORK.values(), host.NETWORK_SPEED), partial(_network, on.network.exclude)
            ),
        ),
        (on.time.enabled, PortableCollector("time", times, _time)),
    ]
    return [collector for enabled, collector in every if enabled]


def _cpu(*, per_cpu: bool) -> list[Sample]:
    total = psutil.cpu_times()._asdict()
    samples = [Sample(host.CPU_SECONDS, (mode,), total[mode]) for mode in cpu.MODES if mode in total]
    if per_cpu:
        samples += [
            Sample(host.CPU_CORE_SECONDS, (str(number), mode), seconds)
            for number, core in enumerate(psutil.cpu_times(percpu=True))
            for mode, seconds in core._asdict().items()
            if mode in cpu.MODES
        ]
    if count := psutil.cpu_count():
        samples.append(Sample(host.CPUS, (), count))
    return [*samples, Sample(CONTEXT_SWITCHES, (), psutil.cpu_stats().ctx_switches)]


def _load() -> list[Sample]:
    return [Sample(metric, (), average) for metric, average in zip(host.LOADS, psutil.getloadavg(), strict=True)]


def _memory() -> list[Sample]:
    fields = psutil.virtual_memory()._asdict()
    swap = psutil.swap_memory()
    return [
        *(Sample(metric, (), fields[field]) for field, metric in MEMORY.items()),
        Sample(host.MEMINFO["SwapTotal"], (), swap.total),
        Sample(host.SWAP_USED, (), swap.used),
    ]


def _disk(exclude: str) -> list[Sample]:
    excluded = re.compile(exclude).fullmatch
    counters = {name: fields._asdict() for name, fields in (psutil.disk_io_counters(perdisk=True) or {}).items()}
    samples = [
        Sample(metric, (device,), fields[field] / (1000 if metric.unit == "seconds" else 1))
        for device, fields in counters.items()
        if not excluded(device)
        for field, metric in DISK.items()
        if field in fields
    ]
    if not samples:
        raise NothingToCollect("there are only devices that collector.disk.exclude leaves out, or none")
    return samples


def _network(exclude: str) -> list[Sample]:
    excluded = re.compile(exclude).fullmatch
    links = psutil.net_if_stats()
    samples: list[Sample] = []
    for device, counters in psutil.net_io_counters(pernic=True).items():
        if excluded(device):
            continue
        fields = counters._asdict()
        samples += [Sample(metric, (device,), fields[field]) for field, metric in NETWORK.items()]
        if device in links and links[device].speed:
            samples.append(Sample(host.NETWORK_SPEED, (device,), links[device].speed * network.MEGABIT))
    if not samples:
        raise NothingToCollect("there are only devices that collector.network.exclude leaves out, or none")
    return samples


def _filesystem(paths: Sequence[str]) -> list[Sample]:
    if not paths:
        raise NothingToCollect("collector.filesystem.paths is empty; list / and the paths of your data and checkpoints")
    partitions = {partition.mountpoint: partition for partition in psutil.disk_partitions(all=True)}
    points = dict.fromkeys(point for path in paths if (point := _mount_point(path, partitions)) is not None)
    return [
        sample
        for point in points
        for sample in _room(point, partitions[point].fstype, partitions[point].opts.split(","))
    ]


def _mount_point(path: str, points: Iterable[str]) -> str | None:
    """Return the innermost mount point of a path; None when the path does not exist."""
    try:
        real = Path(path).resolve(strict=True)
    except OSError:
        return None
    return max((point for point in points if real.is_relative_to(point)), key=len, default=None)


def _room(point: str, fstype: str, options: Sequence[str]) -> Iterator[Sample]:
    labels = (point, fstype)
    try:
        usage = psutil.disk_usage(point)
    except PermissionError:
        return
    except OSError:
        yield Sample(host.FILESYSTEM_DEVICE_ERROR, labels, 1.0)
        return
    yield Sample(host.FILESYSTEM_DEVICE_ERROR, labels, 0.0)
    yield Sample(host.FILESYSTEM_READONLY, labels, float("ro" in options))
    if usage.total:
        yield Sample(host.FILESYSTEM_SIZE, labels, usage.total)
        # psutil's `free` is f_bavail, and its `used` is the size without f_bfree.
        yield Sample(host.FILESYSTEM_FREE, labels, usage.total - usage.used)
        yield Sample(host.FILESYSTEM_AVAIL, labels, usage.free)


def _time() -> list[Sample]:
    uname = os.uname()
    names = (uname.sysname, uname.release, uname.version, uname.machine, uname.nodename)
    return [
        Sample(host.TIME, (), time.time()),
        Sample(host.UNAME, names, 1),
        Sample(host.BOOT_TIME, (), psutil.boot_time()),
    ]
