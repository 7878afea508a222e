"""The OOM kills of a cgroup, also those that it did not live to tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.collectors.cgroup.reading import bounded
from trackside_daemon.linux.oom_counters import kill_counts

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from trackside_daemon.linux.cgroups import Cgroup
    from trackside_daemon.linux.oom_counters import Counters


class HeldKills:
    """One cgroup's.

    A cgroup often goes in the moment in which its process is killed. By how much the nearest count above it has grown
    since it was last seen is then taken for its own, once. A neighbour's kill between the same two looks is so counted
    here too; the verdict on a run's end is found by the same rule.

    Args:
        counters: Looked at by the owner before each `look`.
        machine: /proc/vmstat, which tells where no cgroup above does.
        before: The kills of those of the same name that came before it.

    Attributes:
        total: The kills until now; None when the kernel does not count them.
    """

    def __init__(self, counters: Counters, cgroup: Cgroup, machine: Path, now: float, before: int = 0) -> None:
        self._counters = counters
        self._paths = counters.follow(kill_counts(cgroup), now) if bounded(cgroup.levels("memory")[:1]) else ()
        self._own = self._paths[0].parent if self._paths else None
        if len(self._paths) == 1:
            self._paths += counters.follow([machine], now)
        self._before = before
        self._above: list[int | None] = []
        self.total: int | None = None

    @property
    def is_back(self) -> bool:
        """Whether another cgroup of the same name has come after it was gone."""
        return self._own is not None and not self._paths and self._own.is_dir()

    def look(self) -> int | None:
        """The total, as of now."""
        if not self._paths:
            return self.total
        own, *above = (self._counters[path] for path in self._paths)
        if own.there and own.count is not None:
            self.total, self._above = self._before + own.count, [one.count for one in above]
        elif self.total is not None:
            known = ((one.count, before) for one, before in zip(above, self._above, strict=True) if one.there)
            self.total += _grown(known)
            self.release()  # lest who comes next under the name be given these files
        return self.total

    def release(self) -> None:
        """It is not asked for any more, or gone."""
        self._counters.release(self._paths)
        self._paths = ()


def _grown(counts: Iterable[tuple[int | None, int | None]]) -> int:
    """By how much the first count has grown, of pairs of what it is and what it was."""
    now, before = next(iter(counts), (0, 0))
    return 0 if now is None or before is None else max(0, now - before)
