"""Count the OOM kills of a cgroup, including those in the moment of its removal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.collectors.cgroup.reading import bounded
from trackside_daemon.linux.oom_counters import kill_counts

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from trackside_daemon.linux.cgroups import Cgroup
    from trackside_daemon.linux.oom_counters import Counters


class CgroupOomKills:
    """The OOM kills of one cgroup.

    A cgroup often disappears in the moment in which its process is killed. The increase of the nearest counter above it
    since the last read is then added, once. This includes a neighbour's kill in the same interval; the verdict on how a
    run ended uses the same rule.

    Args:
        counters: The owner reads them before each `read`.
        cgroup: The cgroup.
        machine: Path of /proc/vmstat, the counter where no cgroup above has one.
        now: Seconds of the monotonic clock.
        before: Kills of earlier cgroups of the same name.

    Attributes:
        total: The kills so far; None when the kernel does not count them.
    """

    def __init__(self, counters: Counters, cgroup: Cgroup, machine: Path, now: float, before: int = 0) -> None:
        self._counters = counters
        self._paths = counters.follow(kill_counts(cgroup), now) if bounded(cgroup.levels("memory")[:1]) else ()
        self._own = self._paths[0].parent if self._paths else None
        # No cgroup above counts: with v1 by design, with v2 because only the root is above it.
        if len(self._paths) == 1:
            self._paths += counters.follow([machine], now)
        self._before = before
        self._above: list[int | None] = []
        self.total: int | None = None

    @property
    def is_recreated(self) -> bool:
        """True when a cgroup of the same name exists again after this one disappeared."""
        return self._own is not None and not self._paths and self._own.is_dir()

    def read(self) -> int | None:
        """Update `total` from the counters, and return it."""
        if not self._paths:
            return self.total
        own, *above = (self._counters[path] for path in self._paths)
        if own.readable and own.count is not None:
            self.total = self._before + own.count
            self._above = [counter.count for counter in above]
        elif self.total is not None:
            counts = (
                (counter.count, before) for counter, before in zip(above, self._above, strict=True) if counter.readable
            )
            self.total += _increase(counts)
            self.release()  # otherwise the next cgroup of this name would get these open files
        return self.total

    def release(self) -> None:
        """Stop following the counters."""
        self._counters.release(self._paths)
        self._paths = ()


def _increase(counts: Iterable[tuple[int | None, int | None]]) -> int:
    """Return the increase of the first counter, of pairs of its current and its earlier value."""
    now, before = next(iter(counts), (0, 0))
    return 0 if now is None or before is None else max(0, now - before)
