"""Collect the host's clock, its synchronization, boot time and kernel."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from trackside_daemon.collectors.kernel_files import no_field, number, read_base
from trackside_daemon.linux.adjtimex import Discipline, discipline
from trackside_daemon.model.metric import Metric, Sample

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("trackside")

NOW = Metric(
    "trackside_host_time_seconds",
    "gauge",
    "Unix time of the host at the time of the sample, from time(2).",
    unit="seconds",
)
BOOT = Metric(
    "trackside_host_boot_time_seconds",
    "gauge",
    "Unix time of the host's boot, from /proc/stat btime; it changes when the clock is stepped.",
    unit="seconds",
)
OFFSET = Metric(
    "trackside_host_time_offset_seconds",
    "gauge",
    "Offset of the clock as reported to the kernel, from adjtimex(2) offset; 0 with chronyd, which does not report it.",
    unit="seconds",
)
SYNCHRONIZED = Metric(
    "trackside_host_time_synchronized",
    "gauge",
    "1 when the clock is synchronized to a reliable server, else 0, from adjtimex(2).",
)
UNAME = Metric(
    "trackside_host_uname_info",
    "info",
    "The host's kernel and name, from uname(2).",
    ("sysname", "release", "version", "machine", "nodename"),
)

# The kernel of a large host needs milliseconds to write /proc/stat.
BOOT_SECONDS = 60.0  # interval of reading the boot time


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
    metrics = (NOW, BOOT, OFFSET, SYNCHRONIZED, UNAME)

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
            Sample(NOW, (), self._wall()),
            Sample(UNAME, names, 1),
            *self._discipline(),
            Sample(BOOT, (), self._boot),
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
        samples = [Sample(SYNCHRONIZED, (), int(synchronized))]
        return samples if offset is None else [*samples, Sample(OFFSET, (), offset)]
