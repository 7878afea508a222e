"""Processes of this machine outside of the training that use most of it, by two readings of /proc."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.causes.readings import Neighbour
from trackside_daemon.collectors.kernel_files import number, read
from trackside_daemon.collectors.process.process_tree import read_stat

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from trackside_daemon.collectors.process.process_names import ProcessKey
    from trackside_daemon.collectors.process.process_tree import Stat

MOST = 3  # processes that are returned of those that use most CPU time, storage and memory each
READ = 10_000  # most processes that are read, about 20 µs each
LEAST_CPUS = 0.05
LEAST_IO = 1e6  # bytes per second
LEAST_RESIDENT = 1e9  # bytes
KERNEL_THREAD = 0x00200000  # PF_KTHREAD of the kernel's <linux/sched.h>


class Seen(NamedTuple):
    """All processes at one moment.

    Attributes:
        at: Seconds of the clock that also counts while the machine sleeps, like the start of processes.
        stats: By process.
        moved: Bytes read from and written to storage so far, where the kernel shows them.
    """

    at: float
    stats: Mapping[ProcessKey, Stat]
    moved: Mapping[ProcessKey, int]


def read_processes(proc: str) -> Seen:
    """Read the processes of the procfs at *proc*, without kernel threads."""
    with os.scandir(proc) as entries:
        pids = [int(entry.name) for entry in entries if entry.name.isdecimal()][:READ]
    found = [stat for pid in pids if (stat := read_stat(proc, pid)) is not None and not stat.flags & KERNEL_THREAD]
    moved = {stat.key: size for stat in found if (size := _moved(f"{proc}/{stat.pid}/io")) is not None}
    return Seen(time.clock_gettime(time.CLOCK_BOOTTIME), {stat.key: stat for stat in found}, moved)


def _moved(path: str) -> int | None:
    """Return read_bytes and write_bytes of proc_pid_io(5); None if they are not visible."""
    with suppress(OSError, ValueError):
        data = read(path)
        return (number(data, b"read_bytes: ", path) or 0) + (number(data, b"write_bytes: ", path) or 0)
    return None


def heaviest(before: Seen, after: Seen, own: Collection[int]) -> list[Neighbour]:
    """Return the processes except *own* that used most CPU time, storage or memory between two readings."""
    seconds, hertz, page = max(after.at - before.at, 1e-3), os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    every = [
        Neighbour(
            stat.pid,
            stat.comm,
            (stat.user + stat.system - began.user - began.system) / hertz / seconds,
            max(0, after.moved.get(key, 0) - before.moved.get(key, 0)) / seconds if key in before.moved else 0.0,
            stat.resident * page,
            after.at - stat.start / hertz,
        )
        for key, stat in after.stats.items()
        if stat.pid not in own and (began := before.stats.get(key)) is not None
    ]
    by_cpu = sorted((one for one in every if one.cpus >= LEAST_CPUS), key=lambda one: -one.cpus)[:MOST]
    by_io = sorted((one for one in every if one.io >= LEAST_IO), key=lambda one: -one.io)[:MOST]
    by_memory = sorted((one for one in every if one.resident >= LEAST_RESIDENT), key=lambda one: -one.resident)[:MOST]
    return list(dict.fromkeys([*by_cpu, *by_io, *by_memory]))
