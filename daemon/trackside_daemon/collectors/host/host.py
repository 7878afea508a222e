"""The collectors of the host, each of which reads one subject of /proc or /sys; the short ones are here."""

import logging
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

from trackside_daemon.collectors.base import Collector, NothingToCollect
from trackside_daemon.collectors.host.filesystem.filesystem import FilesystemCollector
from trackside_daemon.collectors.host.infiniband import InfinibandCollector
from trackside_daemon.collectors.host.network import NetworkCollector
from trackside_daemon.collectors.host.pressure import PressureCollector
from trackside_daemon.collectors.host.thermal import ThermalCollector
from trackside_daemon.collectors.kernel_files import fields, no_field, not_a_number, number, read, read_base
from trackside_daemon.collectors.settings import CollectorsSection, PathSection
from trackside_daemon.linux.adjtimex import Discipline, discipline
from trackside_daemon.model.families import host
from trackside_daemon.model.metric import Sample

log = logging.getLogger("trackside")

# Columns of a `cpu` line of /proc/stat, in order. `user` and `nice` include guest time, as in node_exporter.
MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")

# The counters iowait and idle may step back a little, which Prometheus would read as a reset. A larger step means that
# CPUs went offline. node_exporter's jumpBackSeconds has the same value.
STEP_BACK = 3.0  # a counter that falls by less, in seconds, keeps its last value

# The kernel of a large host needs milliseconds to write /proc/stat.
BOOT_SECONDS = 60.0  # interval of reading the boot time
# Divisors of the columns by the family's unit: a column has milliseconds, or sectors of 512 bytes, whatever the device's own
# size is.
DIVISORS = {"seconds": 1000, "bytes": 1 / 512, "": 1}

# Partitions had fewer columns before Linux 2.6.25, with other meanings.
COLUMNS = 14  # least columns of a line


class CpuCollector:
    """The CPU values of /proc/stat.

    Args:
        proc: Path of procfs.
        per_cpu: Also collect the time of each CPU.

    Attributes:
        text: The file as it was in the last tick.
    """

    # Read the file once a tick: on a large host the kernel needs milliseconds to write it.

    name = "cpu"

    def __init__(self, proc: Path = Path("/proc"), *, per_cpu: bool = False) -> None:
        self._stat = proc / "stat"
        self._per_cpu = per_cpu
        self._ticks_per_second = os.sysconf("SC_CLK_TCK")
        self._last: dict[bytes, list[float]] = {}
        self.text = b""

    def collect(self) -> list[Sample]:
        """Return one sample per mode and per number that this kernel has.

        Raises:
            OSError: /proc/stat cannot be read.
            ValueError: It does not begin with a ``cpu`` line, or a field is not a number.
        """
        self.text = data = read_base(self._stat)
        first = data[: data.find(b"\n")]
        if not first.startswith(b"cpu "):
            label = first.partition(b" ")[0].decode(errors="replace")
            raise ValueError(f"{self._stat} begins with {label!r}, not with the line of all CPUs; is procfs mounted?")
        seconds = self._seconds(first)  # kernels before 2.6.11 have no steal
        samples = [Sample(host.CPU_SECONDS, (mode,), value) for mode, value in zip(MODES, seconds, strict=False)]
        if self._per_cpu:
            samples += self._cores(data)
        for name, metric in host.STAT_NUMBERS.items():
            value = number(data, name, self._stat)
            if value is not None:
                samples.append(Sample(metric, (), value))
        # The line of all CPUs is not counted: as the first one, it has no newline before it.
        if (cpus := data.count(b"\ncpu")) > 0:
            samples.append(Sample(host.CPUS, (), cpus))
        return samples

    def _cores(self, data: bytes) -> list[Sample]:
        samples = []
        for line in data.splitlines()[1:]:
            if not line.startswith(b"cpu"):
                break
            cpu = line[3 : line.find(b" ")].decode()
            samples += [
                Sample(host.CPU_CORE_SECONDS, (cpu, mode), value)
                for mode, value in zip(MODES, self._seconds(line), strict=False)
            ]
        return samples

    def _seconds(self, line: bytes) -> list[float]:
        """Return the modes of one line in seconds, without small steps back."""
        label, *ticks = line.split(None, len(MODES) + 1)
        try:
            now = [int(count) / self._ticks_per_second for count in ticks[: len(MODES)]]
        except ValueError as error:
            word = next(word for word in ticks if not word.isdigit())
            raise not_a_number(self._stat, f"a count of {label.decode()}", word) from error
        last = self._last.get(label, now)
        self._last[label] = now = [
            before if 0 < before - value < STEP_BACK else value for value, before in zip(now, last, strict=False)
        ]
        return now


class TimeCollector:
    """The clock of the host and its synchronization.

    Ranks on hosts whose clocks differ seem to wait for each other.

    Args:
        proc: Path of procfs.
        wall: Unix time, in seconds.
        clock: Seconds of the monotonic clock.
        kernel: Returns the state of the kernel's clock.
        uname: Returns name and kernel of this host.
    """

    name = "time"

    def __init__(
        self,
        proc: Path = Path("/proc"),
        *,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        kernel: Callable[[], Discipline] = discipline,
        uname: Callable[[], os.uname_result] = os.uname,
    ) -> None:
        self._stat = proc / "stat"
        self._wall = wall
        self._clock = clock
        self._kernel: Callable[[], Discipline] | None = kernel
        self._uname = uname
        self._boot = 0
        self._boot_until = -1.0

    def collect(self) -> list[Sample]:
        """Return the samples of the clock and the kernel.

        Raises:
            OSError: /proc/stat cannot be read.
            ValueError: It has no ``btime``, or that is not a number.
        """
        if self._clock() >= self._boot_until:
            self._boot = self._read_boot()
            self._boot_until = self._clock() + BOOT_SECONDS
        uname = self._uname()
        names = (uname.sysname, uname.release, uname.version, uname.machine, uname.nodename)
        return [
            Sample(host.TIME, (), self._wall()),
            Sample(host.UNAME, names, 1),
            *self._discipline(),
            Sample(host.BOOT_TIME, (), self._boot),
        ]

    def _read_boot(self) -> int:
        boot = number(read_base(self._stat), b"btime ", self._stat)
        if boot is None:
            raise no_field(self._stat, ["btime"])
        return boot

    def _discipline(self) -> list[Sample]:
        if self._kernel is None:
            return []
        try:
            synchronized, offset = self._kernel()
        except OSError as error:
            log.info("the clock's offset is left out: %s; allow adjtimex in the container's seccomp profile", error)
            self._kernel = None  # a seccomp filter stays until the process ends, so another try is useless
            return []
        samples = [Sample(host.TIME_SYNCHRONIZED, (), int(synchronized))]
        return samples if offset is None else [*samples, Sample(host.TIME_OFFSET, (), offset)]


class LoadCollector:
    """The three load averages, and the kernel's count of hung tasks where it has one.

    Args:
        proc: Path of procfs.
    """

    name = "load"

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._loadavg = proc / "loadavg"
        self._hung = proc / "sys" / "kernel" / "hung_task_detect_count"

    def collect(self) -> list[Sample]:
        """Return one sample per average, and the count.

        Raises:
            OSError: /proc/loadavg cannot be read.
            ValueError: It does not begin with three numbers, or the count is not a number.
        """
        data = read_base(self._loadavg)
        words = data.split(None, len(host.LOADS))[: len(host.LOADS)]
        try:
            samples = [Sample(metric, (), float(word)) for metric, word in zip(host.LOADS, words, strict=True)]
        except ValueError as error:
            raise not_a_number(self._loadavg, "one of the first three words", data.strip()) from error
        try:
            hung = number(read(self._hung), b"", self._hung)
        except OSError:
            return samples  # an older kernel, or one without the detection of hung tasks
        return samples if hung is None else [*samples, Sample(host.HUNG_TASKS, (), hung)]


class MemoryCollector:
    """The fields of /proc/meminfo that matter to a training; fields that this kernel lacks are left out.

    Args:
        proc: Path of procfs.
    """

    name = "memory"

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._meminfo = proc / "meminfo"
        self._fields = [(f"{field}:".encode(), metric) for field, metric in host.MEMINFO.items()]

    def collect(self) -> list[Sample]:
        """Return one sample per field.

        Raises:
            OSError: /proc/meminfo cannot be read.
            ValueError: It has none of the fields, or one is not a number.
        """
        data = read_base(self._meminfo)
        samples = fields(data, self._fields, self._meminfo, 1024)  # a kB of this file has 1024 bytes
        swap, free = (number(data, name, self._meminfo) for name in (b"SwapTotal:", b"SwapFree:"))
        if swap is not None and free is not None:
            samples.append(Sample(host.SWAP_USED, (), (swap - free) * 1024))
        return samples


class VmstatCollector:
    """The counters of /proc/vmstat that show a lack of memory; counters that this kernel lacks are left out.

    Args:
        proc: Path of procfs.
    """

    name = "vmstat"

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._vmstat = proc / "vmstat"
        self._fields = [(f"{field} ".encode(), metric) for field, metric in host.VMSTAT.items()]

    def collect(self) -> list[Sample]:
        """Return one sample per field.

        Raises:
            OSError: /proc/vmstat cannot be read.
            ValueError: It has none of the fields, or one is not a number.
        """
        return fields(read_base(self._vmstat), self._fields, self._vmstat)


class DiskCollector:
    """The devices of /proc/diskstats; a device without any operation has counters of 0, as in node_exporter.

    Args:
        proc: Path of procfs.
        exclude: A regular expression that matches the whole names of the devices to leave out.
    """

    name = "disk"

    def __init__(self, proc: Path, exclude: str) -> None:
        self._diskstats = proc / "diskstats"
        # Cached, because a pattern costs more than a lookup and the devices are the same in each tick.
        self._excluded = lru_cache(maxsize=1024)(re.compile(exclude).fullmatch)

    def collect(self) -> list[Sample]:
        """Return nine samples per device; lines with other columns than numbers are left out.

        Raises:
            NothingToCollect: There is no device that is not excluded.
            OSError: /proc/diskstats cannot be read.
            ValueError: It has lines, but none of a device.
        """
        try:
            lines = read_base(self._diskstats).splitlines()
        except FileNotFoundError:
            raise NothingToCollect(
                f"{self._diskstats} does not exist: this kernel has no block devices, or --path.procfs is not a procfs"
            ) from None
        samples: list[Sample] = []
        excluded = False
        for line in lines:
            columns = line.split()
            if len(columns) < COLUMNS:
                continue
            device = columns[2].decode(errors="replace")
            if self._excluded(device):
                excluded = True
            else:
                samples += _samples((device,), columns)
        if lines and not samples and not excluded:
            raise ValueError(f"{self._diskstats} has no line of a device, but {lines[0]!r}; is --path.procfs a procfs?")
        if not samples:
            raise NothingToCollect(f"{self._diskstats} has only devices that collector.disk.exclude leaves out")
        return samples


def _samples(labels: tuple[str], columns: list[bytes]) -> list[Sample]:
    try:
        return [
            Sample(metric, labels, int(columns[column]) / DIVISORS[metric.unit])
            for column, metric in host.DISKSTATS.items()
        ]
    except ValueError:
        return []


def host_collectors(on: CollectorsSection, path: PathSection, paths: Sequence[str]) -> list[Collector]:
    """Return the collectors that the configuration enables; none on systems without /proc, such as macOS.

    Args:
        on: The enabled collectors and their settings.
        path: Paths of the host's files.
        paths: Paths whose file systems are shown.
    """
    proc = Path(path.procfs)
    sysfs = Path(path.sysfs)
    root = Path(path.rootfs)
    if not has_procfs(proc):
        return []
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
