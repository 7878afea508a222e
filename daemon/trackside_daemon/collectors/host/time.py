"""Collect the host's clock, its synchronization, boot time and kernel."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from trackside_daemon.collectors.kernel_files import no_field, number, read_base
from trackside_daemon.linux.adjtimex import Discipline, discipline
from trackside_daemon.model.families import host
from trackside_daemon.model.metric import Sample

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("trackside")

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
    metrics = (host.TIME, host.BOOT_TIME, host.TIME_OFFSET, host.TIME_SYNCHRONIZED, host.UNAME)

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
