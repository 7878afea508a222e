"""Decide whether the kernel's OOM killer ended a process, from the counters of the cgroups that it ran in.

A container's cgroup disappears with it, and the root of v2 has no counter. The nearest counter above then serves, or
``/proc/vmstat``, which counts for the whole machine.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from trackside_daemon.linux.cgroups import Cgroups
from trackside_daemon.linux.oom_counters import Counters, kill_counts

# Tearing down a driver and much memory can last this long.
TEARDOWN_SECONDS = 30.0  # longest time from an OOM kill to the end of the process


class OomWatch(NamedTuple):
    """The counters of one process, the nearest first, and the monotonic time since which they are followed."""

    paths: tuple[Path, ...]
    since: float


class OomKills:
    """The OOM counters of the cgroups of some processes. Times are seconds of the monotonic clock.

    Args:
        proc: Path of procfs.
        sys: Path of the host's sysfs.
    """

    def __init__(self, proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> None:
        self._cgroups = Cgroups(proc, sys)
        self._machine = proc / "vmstat"
        self._counters = Counters()

    def watch(self, pid: int, now: float) -> OomWatch:
        """Follow the counters of a living process's cgroup; give them back with `release`."""
        cgroup = self._cgroups.of(pid)
        nearest = [] if cgroup is None else kill_counts(cgroup)
        return OomWatch(self._counters.follow((*nearest, self._machine), now), now)

    def tick(self, now: float) -> None:
        """Read all counters; call this once a second, because a cgroup may be gone when `killed` needs its counter."""
        self._counters.read(now)

    def killed(self, watch: OomWatch, now: float) -> bool:
        """Return whether the OOM killer may have killed a process that a SIGKILL ended just now."""
        for counter in map(self._counters.__getitem__, watch.paths):
            readable = counter.read(now)
            if counter.increased_at > max(watch.since, now - TEARDOWN_SECONDS):
                return True
            # The nearest counter that still exists saw no kill, so those above it counted others' kills.
            if readable:
                break
        return False

    def release(self, watch: OomWatch) -> None:
        """Stop following the counters of a process."""
        self._counters.release(watch.paths)
