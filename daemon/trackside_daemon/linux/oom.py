"""Whether the kernel's OOM killer was at work, by its counts of the cgroups that trainings run in.

Containers take their cgroup with them, and the root of v2 has no count, so then the nearest one above tells, and
``/proc/vmstat``, which counts for the whole machine.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from trackside_daemon.linux.cgroups import Cgroups
from trackside_daemon.linux.oom_counters import Counters, kill_counts

TEARDOWN_SECONDS = 30.0
"""From the kill to the process's end: so long can a driver and much memory take to be torn down."""


class Watched(NamedTuple):
    """A process's counts, the nearest first, and since when they are followed, in monotonic seconds."""

    paths: tuple[Path, ...]
    since: float


class OomKills:
    """Follows the counts of the cgroups of some processes. Times are seconds of the monotonic clock.

    Args:
        proc: Where procfs is mounted.
        sys: Where the host's /sys is.
    """

    def __init__(self, proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> None:
        self._cgroups = Cgroups(proc, sys)
        self._machine = proc / "vmstat"
        self._counters = Counters()

    def watch(self, pid: int, now: float) -> Watched:
        """Follow the counts of a living process's cgroup; to be given back with `release`."""
        cgroup = self._cgroups.of(pid)
        nearest = [] if cgroup is None else kill_counts(cgroup)
        return Watched(self._counters.follow((*nearest, self._machine), now), now)

    def tick(self, now: float) -> None:
        """Once a second: see what has grown, lest its cgroup be gone when it is asked for."""
        self._counters.look(now)

    def killed(self, watched: Watched, now: float) -> bool:
        """Whether a process that a SIGKILL ended just now may be one that the OOM killer killed."""
        for counter in map(self._counters.__getitem__, watched.paths):
            there = counter.look(now)
            if counter.grown_at > max(watched.since, now - TEARDOWN_SECONDS):
                return True
            if there:
                break
        return False

    def release(self, watched: Watched) -> None:
        """The process is over."""
        self._counters.release(watched.paths)
