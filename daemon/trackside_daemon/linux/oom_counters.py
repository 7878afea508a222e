"""The kernel's counts of OOM kills: of cgroups, and of the whole machine.

A cgroup of v2 counts in ``memory.events`` with those below it, one of v1 in ``memory.oom_control`` for itself. Its count
goes when it goes, often before anybody looks, so that then the nearest one above tells, or ``/proc/vmstat``.
"""

from __future__ import annotations

import os
import re
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from trackside_daemon.linux.cgroups import Cgroup

_COUNT = re.compile(rb"^oom_kill (\d+)$", re.MULTILINE)
_BYTES = 65536


def kill_counts(cgroup: Cgroup) -> list[Path]:
    """The files that may count the kill of a process in a cgroup, the nearest first."""
    if "memory" in cgroup.v1:
        return [one / "memory.oom_control" for one in cgroup.v1["memory"][:1]]
    return [one / "memory.events" for one in cgroup.v2]


class Counter:
    """One file with a count, kept open.

    Attributes:
        users: How many follow it.
        count: What it was when it was last there; None when it never was.
        there: Whether it was there at the last look.
        grown_at: When it was first seen to have grown lately, in seconds of the monotonic clock.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.users = 0
        self.count: int | None = None
        self.there = False
        self.grown_at = -inf

    def look(self, now: float) -> bool:
        """Read it; False when its cgroup is gone or the kernel does not count."""
        self.there = False
        try:
            found = _COUNT.search(os.pread(self._file, _BYTES, 0))
        except OSError:
            return False
        if found is None:
            return False
        count = int(found[1])
        if self.count is not None and count > self.count:
            self.grown_at = now
        self.count, self.there = count, True
        return True

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)


class Counters(dict["Path", Counter]):
    """Those that are followed, by their files, each open once. Times are seconds of the monotonic clock."""

    def follow(self, paths: Iterable[Path], now: float) -> tuple[Path, ...]:
        """Follow what of these is a count, to be given back with `release`."""
        return tuple(path for path in paths if self._open(path, now))

    def look(self, now: float) -> None:
        """See what has grown."""
        for counter in self.values():
            counter.look(now)

    def release(self, paths: Iterable[Path]) -> None:
        """Nobody who has followed these does any longer."""
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
        if not counter.look(now) and not counter.users:
            counter.close()
            return False
        counter.users += 1
        self[path] = counter
        return True
