"""Processes of this machine outside of the training that use the CPUs, by two readings of /proc."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.alerts.evidence.causes.readings import Busy
from trackside_daemon.collectors.process.process_tree import read_stat

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from trackside_daemon.collectors.process.process_names import ProcessKey
    from trackside_daemon.collectors.process.process_tree import Stat

MOST = 8  # processes that are returned
READ = 10_000  # most processes that are read, about 10 µs each


class Seen(NamedTuple):
    """All processes at one moment of the monotonic clock, in seconds."""

    at: float
    stats: Mapping[ProcessKey, Stat]


def see(proc: str) -> Seen:
    """Read the processes of the procfs at *proc*."""
    with os.scandir(proc) as entries:
        pids = [int(entry.name) for entry in entries if entry.name.isdecimal()][:READ]
    stats = (read_stat(proc, pid) for pid in pids)
    return Seen(time.monotonic(), {stat.key: stat for stat in stats if stat is not None})


def busiest(before: Seen, after: Seen, own: Collection[int]) -> list[Busy]:
    """Return the processes except *own* by the CPUs that they used between two readings, the busiest first."""
    ticks = os.sysconf("SC_CLK_TCK") * max(after.at - before.at, 1e-3)
    used = [
        Busy(stat.pid, stat.comm, (stat.user + stat.system - began.user - began.system) / ticks)
        for key, stat in after.stats.items()
        if stat.pid not in own and (began := before.stats.get(key)) is not None
    ]
    return sorted((one for one in used if one.cpus > 0), key=lambda one: -one.cpus)[:MOST]
