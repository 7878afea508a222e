"""Whether the kernel's OOM killer was at work, by its counts of the cgroups that trainings run in.

Of a process its cgroup is looked at: ``memory.events`` of cgroup v2, whose counts include those below, and
``memory.oom_control`` of v1. Containers take their cgroup with them, and the root of v2 has no count, so then the
nearest one above tells, and ``/proc/vmstat``, which counts for the whole machine.
"""

from __future__ import annotations

import os
import re
from math import inf
from pathlib import Path
from typing import NamedTuple

from trackside_daemon.cgroups import mounts, place

TEARDOWN_SECONDS = 30.0
"""From the kill to the process's end: so long can a driver and much memory take to be torn down."""

_COUNT = re.compile(rb"^oom_kill (\d+)$", re.MULTILINE)
_BYTES = 65536


class _Counter:
    """One file with a count, kept open.

    Attributes:
        users: How many watched processes it is of.
        grown_at: When the count was first seen to have grown lately, in seconds of the monotonic clock.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._count: int | None = None
        self.users = 0
        self.grown_at = -inf

    def look(self, now: float) -> bool:
        """Read it; False when its cgroup is gone or the kernel does not count."""
        try:
            found = _COUNT.search(os.pread(self._file, _BYTES, 0))
        except OSError:
            return False
        if found is None:
            return False
        count = int(found[1])
        if self._count is not None and count > self._count:
            self.grown_at = now
        self._count = count
        return True

    def close(self) -> None:
        os.close(self._file)


class Watched(NamedTuple):
    """A process's counts, the nearest first, and since when they are followed, in monotonic seconds."""

    paths: tuple[Path, ...]
    since: float


class OomKills:
    """Follows the counts of the cgroups of some processes. Times are seconds of the monotonic clock.

    Args:
        proc: Where the kernel's process files are; its ``self/mountinfo`` says where the cgroups are.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._v1, self._v2 = mounts(proc)
        self._counters: dict[Path, _Counter] = {}

    def watch(self, pid: int, now: float) -> Watched:
        """Follow the counts of a living process's cgroup; to be given back with `release`."""
        paths = tuple(path for path in (*self._of(pid), self._proc / "vmstat") if self._open(path, now))
        return Watched(paths, now)

    def tick(self, now: float) -> None:
        """Once a second: see what has grown, lest its cgroup be gone when it is asked for."""
        for counter in self._counters.values():
            counter.look(now)

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
        for path in watched.paths:
            counter = self._counters[path]
            counter.users -= 1
            if not counter.users:
                self._counters.pop(path).close()

    def _open(self, path: Path, now: float) -> bool:
        """Follow a count for one more process; False when it is none."""
        counter = self._counters.get(path)
        if counter is None:
            try:
                counter = _Counter(path)
            except OSError:
                return False
        if not counter.look(now) and not counter.users:
            counter.close()
            return False
        counter.users += 1
        self._counters[path] = counter
        return True

    def _of(self, pid: int) -> list[Path]:
        """The files that may count a process's kill, the nearest first (/proc/PID/cgroup)."""
        try:
            lines = (self._proc / str(pid) / "cgroup").read_text(errors="surrogateescape").splitlines()
        except OSError:
            return []
        cgroups = {name: path for line in lines for _, names, path in [line.split(":", 2)] for name in names.split(",")}
        if self._v1 is not None and "memory" in cgroups:
            found = place(self._v1, cgroups["memory"])
            return [] if found is None else [found / "memory.oom_control"]
        found = None if self._v2 is None else place(self._v2, cgroups.get("", "/"))
        if found is None or self._v2 is None:
            return []
        return [one / "memory.events" for one in (found, *found.parents) if one.is_relative_to(self._v2.point)]
