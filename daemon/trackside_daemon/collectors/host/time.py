"""Clocks of the host, its boot and its kernel."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from trackside_daemon.collectors.host.adjtimex import Discipline, discipline
from trackside_daemon.collectors.kernel_files import no_field, number, read_base
from trackside_daemon.model.metric import Metric, Sample

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("trackside")

NOW = Metric(
    "trackside_host_time_seconds", "gauge", "Unix time of the host, when it was sampled, from time(2).", unit="seconds"
)
BOOT = Metric(
    "trackside_host_boot_time_seconds",
    "gauge",
    "Unix time of the host's boot, from /proc/stat btime; it moves when the clock is stepped.",
    unit="seconds",
)
OFFSET = Metric(
    "trackside_host_time_offset_seconds",
    "gauge",
    "How far the clock is off as far as the kernel was told, from adjtimex(2) offset; 0 with chronyd, which does not tell.",
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

BOOT_EVERY = 60.0
"""Seconds between two readings of /proc/stat, which a large host's kernel needs milliseconds to write."""


class TimeCollector:
    """The clock of the host, and how well it is kept: ranks on hosts whose clocks differ seem to wait for each other.

    Args:
        proc: Where procfs is mounted.
        wall: Unix time, in seconds.
        clock: Seconds of the monotonic clock.
        kernel: What the kernel knows of its clock.
        uname: Of this host.
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
        """Times, and the kernel's name.

        Raises:
            OSError: /proc/stat cannot be read.
            ValueError: It has no ``btime``, or that is not a number.
        """
        if self._clock() >= self._boot_until:
            self._boot = self._read_boot()
            self._boot_until = self._clock() + BOOT_EVERY
        uname = self._uname()
        names = (uname.sysname, uname.release, uname.version, uname.machine, uname.nodename)
        return [
            Sample(NOW, (), self._wall()),
            Sample(UNAME, names, 1),
            *self._kept(),
            Sample(BOOT, (), self._boot),
        ]

    def _read_boot(self) -> int:
        boot = number(read_base(self._stat), b"btime ", self._stat)
        if boot is None:
            raise no_field(self._stat, ["btime"])
        return boot

    def _kept(self) -> list[Sample]:
        if self._kernel is None:
            return []
        try:
            synchronized, offset = self._kernel()
        except OSError as error:
            log.info("the clock's offset is left out: %s; allow adjtimex in the container's seccomp profile", error)
            self._kernel = None
            return []
        samples = [Sample(SYNCHRONIZED, (), int(synchronized))]
        return samples if offset is None else [*samples, Sample(OFFSET, (), offset)]
