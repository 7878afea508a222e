"""Decide whether the kernel's OOM killer ended a process, from the counters of the cgroups that it ran in.

A container's cgroup disappears with it, and the root of v2 has no counter. The nearest counter above then serves, or
``/proc/vmstat``, which counts for the whole machine.
"""

import os
import re
from collections.abc import Iterable
from math import inf
from pathlib import Path
from typing import NamedTuple

from trackside_daemon.linux.cgroups import Cgroup, Cgroups

# Tearing down a driver and much memory can last this long.
TEARDOWN_SECONDS = 30.0  # longest time from an OOM kill to the end of the process

_COUNT = re.compile(rb"^oom_kill (\d+)$", re.MULTILINE)
_BYTES = 65536


def kill_counts(cgroup: Cgroup) -> list[Path]:
    """Return the files that may count the kill of a process in a cgroup, the nearest first."""
    if "memory" in cgroup.v1:
        # With v1, a counter above does not include this cgroup's kills.
        return [level / "memory.oom_control" for level in cgroup.v1["memory"][:1]]
    return [level / "memory.events" for level in cgroup.v2]


class Counter:
    """One counter file, kept open.

    Attributes:
        users: Number of subjects that follow it.
        count: The last value read; None before the first.
        readable: The last read returned a value.
        increased_at: When the last increase was seen, in seconds of the monotonic clock.
    """

    def __init__(self, path: Path) -> None:
        # Kept open: once its cgroup is removed, a read fails, even when another cgroup has the same name by then.
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.users = 0
        self.count: int | None = None
        self.readable = False
        self.increased_at = -inf

    def read(self, now: float) -> bool:
        """Read the file; return False when its cgroup is gone or the kernel does not count."""
        self.readable = False
        try:
            match = _COUNT.search(os.pread(self._file, _BYTES, 0))
        except OSError:
            return False
        if match is None:
            return False
        count = int(match[1])
        if self.count is not None and count > self.count:
            self.increased_at = now
        self.count = count
        self.readable = True
        return True

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class Counters(dict["Path", Counter]):
    """Followed counters by path, each file open once. Times are seconds of the monotonic clock."""

    def follow(self, paths: Iterable[Path], now: float) -> tuple[Path, ...]:
        """Follow the paths that are counters, and return them; give them back with `release`."""
        return tuple(path for path in paths if self._open(path, now))

    def read(self, now: float) -> None:
        """Read all counters."""
        for counter in self.values():
            counter.read(now)

    def release(self, paths: Iterable[Path]) -> None:
        """Give back paths that `follow` returned."""
        for path in paths:
            counter = self[path]
            counter.users -= 1
            if not counter.users:
                self.pop(path).close()

    def _open(self, path: Path, now: float) -> bool:
        counter = self.get(path)
        if counter is None:
            try:
                counter = Counter(path)
            except OSError:
                return False
        # A followed counter stays even if its cgroup is gone: its last increase still matters to its users.
        if not counter.read(now) and not counter.users:
            counter.close()
            return False
        counter.users += 1
        self[path] = counter
        return True


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
