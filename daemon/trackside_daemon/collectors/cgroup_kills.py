"""The OOM kills of a cgroup, also those that it did not live to tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.collectors.cgroup_reading import bounded
from trackside_daemon.kills import kill_counts

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from trackside_daemon.cgroups import Cgroup
    from trackside_daemon.kills import Counters


class HeldKills:
    """One cgroup's.

    A cgroup often goes in the moment in which its process is killed. By how much the nearest count above it has grown
    since it was last seen is then taken for its own, once. A neighbour's kill between the same two looks is so counted
    here too; the verdict on a run's end is found by the same rule.

    Args:
        counters: Looked at by the owner before each `look`.
        machine: /proc/vmstat, which tells where no cgroup above does.
    """

    def __init__(self, counters: Counters, cgroup: Cgroup, machine: Path, now: float) -> None:
        self._counters = counters
        self._paths = counters.follow(kill_counts(cgroup), now) if bounded(cgroup.levels("memory")[:1]) else ()
        if len(self._paths) == 1:
            self._paths += counters.follow([machine], now)
        self._above: list[int | None] = []
        self._total: int | None = None
        self.gone = False

    @property
    def is_back(self) -> bool:
        """Whether another cgroup of the same name has come after it was gone."""
        return self.gone and self._paths[0].parent.is_dir()

    def look(self) -> int | None:
        """The kills until now; None when the kernel does not count them."""
        if not self._paths:
            return None
        own, *above = (self._counters[path] for path in self._paths)
        if own.there:
            self._total, self._above = own.count, [one.count for one in above]
        elif not self.gone and self._total is not None:
            self.gone = True
            known = ((one.count, before) for one, before in zip(above, self._above, strict=True) if one.there)
            self._total += _grown(known)
        return self._total

    def release(self) -> None:
        """It is not asked for any more."""
        self._counters.release(self._paths)


def _grown(counts: Iterable[tuple[int | None, int | None]]) -> int:
    """By how much the first count has grown, of pairs of what it is and what it was."""
    now, before = next(iter(counts), (0, 0))
    return 0 if now is None or before is None else max(0, now - before)
