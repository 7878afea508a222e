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
from trackside_daemon.collectors.host import cpu, disk, load, memory, network
from trackside_daemon.collectors.host import time as clock
from trackside_daemon.collectors.host.filesystem import filesystem
from trackside_daemon.model.metric import Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from trackside_daemon.collectors.base import Collector
    from trackside_daemon.collectors.settings import CollectorsSection
    from trackside_daemon.model.metric import Metric

CONTEXT_SWITCHES = cpu.NUMBERS[b"ctxt "]

# Families by field of psutil.virtual_memory(); its cached differs from that of /proc/meminfo, as it includes slab.
MEMORY = {
    "total": memory.FIELDS["MemTotal"],
    "available": memory.FIELDS["MemAvailable"],
    "free": memory.FIELDS["MemFree"],
}

_DISK = {column: (metric, divisor) for column, metric, divisor in disk.FIELDS}
# Families and divisors by field of psutil.disk_io_counters(), with times in milliseconds; macOS has no busy_time.
DISK = {
    "read_count": (_DISK[3][0], 1),
    "read_bytes": (_DISK[5][0], 1),
    "read_time": _DISK[6],
    "write_count": (_DISK[7][0], 1),
    "write_bytes": (_DISK[9][0], 1),
    "write_time": _DISK[10],
    "busy_time": _DISK[12],
}

_NETWORK = dict(network.FIELDS)
# Families by field of psutil.net_io_counters().
NETWORK = {
    "bytes_recv": _NETWORK[0],
    "packets_recv": _NETWORK[1],
    "errin": _NETWORK[2],
    "dropin": _NETWORK[3],
    "bytes_sent": _NETWORK[8],
    "packets_sent": _NETWORK[9],
    "errout": _NETWORK[10],
    "dropout": _NETWORK[11],
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
    room = (filesystem.SIZE, filesystem.FREE, filesystem.AVAIL, filesystem.READONLY, filesystem.DEVICE_ERROR)
    swap = (memory.FIELDS["SwapTotal"], memory.SWAP_USED)
    times = (clock.NOW, clock.BOOT, clock.UNAME)
    every: list[tuple[bool, PortableCollector]] = [
        (
            on.cpu.enabled,
            PortableCollector(
                "cpu",
                (cpu.SECONDS, cpu.CORE_SECONDS, cpu.CPUS, CONTEXT_SWITCHES),
                partial(_cpu, per_cpu=on.cpu.per_cpu),
            ),
        ),
        (on.load.enabled, PortableCollector("load", load.LOADS, _load)),
        (on.memory.enabled, PortableCollector("memory", (*MEMORY.values(), *swap), _memory)),
        (
            on.disk.enabled,
            PortableCollector("disk", tuple(metric for metric, _ in DISK.values()), partial(_disk, on.disk.exclude)),
        ),
        (on.filesystem.enabled, PortableCollector("filesystem", room, partial(_filesystem, tuple(paths)))),
        (
            on.network.enabled,
            PortableCollector("network", (*NETWORK.values(), network.SPEED), partial(_network, on.network.exclude)),
        ),
        (on.time.enabled, PortableCollector("time", times, _time)),
    ]
    return [collector for enabled, collector in every if enabled]


def _cpu(*, per_cpu: bool) -> list[Sample]:
    total = psutil.cpu_times()._asdict()
    samples = [Sample(cpu.SECONDS, (mode,), total[mode]) for mode in cpu.MODES if mode in total]
    if per_cpu:
        samples += [
            Sample(cpu.CORE_SECONDS, (str(number), mode), seconds)
            for number, core in enumerate(psutil.cpu_times(percpu=True))
            for mode, seconds in core._asdict().items()
            if mode in cpu.MODES
        ]
    if count := psutil.cpu_count():
        samples.append(Sample(cpu.CPUS, (), count))
    return [*samples, Sample(CONTEXT_SWITCHES, (), psutil.cpu_stats().ctx_switches)]


def _load() -> list[Sample]:
    return [Sample(metric, (), average) for metric, average in zip(load.LOADS, psutil.getloadavg(), strict=True)]


def _memory() -> list[Sample]:
    fields = psutil.virtual_memory()._asdict()
    swap = psutil.swap_memory()
    return [
        *(Sample(metric, (), fields[field]) for field, metric in MEMORY.items()),
        Sample(memory.FIELDS["SwapTotal"], (), swap.total),
        Sample(memory.SWAP_USED, (), swap.used),
    ]


def _disk(exclude: str) -> list[Sample]:
    excluded = re.compile(exclude).fullmatch
    counters = {name: fields._asdict() for name, fields in (psutil.disk_io_counters(perdisk=True) or {}).items()}
    samples = [
        Sample(metric, (device,), fields[field] / divisor)
        for device, fields in counters.items()
        if not excluded(device)
        for field, (metric, divisor) in DISK.items()
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
            samples.append(Sample(network.SPEED, (device,), links[device].speed * network.MEGABIT))
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
        yield Sample(filesystem.DEVICE_ERROR, labels, 1.0)
        return
    yield Sample(filesystem.DEVICE_ERROR, labels, 0.0)
    yield Sample(filesystem.READONLY, labels, float("ro" in options))
    if usage.total:
        yield Sample(filesystem.SIZE, labels, usage.total)
        # psutil's `free` is f_bavail, and its `used` is the size without f_bfree.
        yield Sample(filesystem.FREE, labels, usage.total - usage.used)
        yield Sample(filesystem.AVAIL, labels, usage.free)


def _time() -> list[Sample]:
    uname = os.uname()
    names = (uname.sysname, uname.release, uname.version, uname.machine, uname.nodename)
    return [
        Sample(clock.NOW, (), time.time()),
        Sample(clock.UNAME, names, 1),
        Sample(clock.BOOT, (), psutil.boot_time()),
    ]
