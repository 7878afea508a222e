"""The limits that hold for a cgroup: the smallest of its own and of those above it, as far as they are seen here.

Which is the smallest may change while it runs: limits are set anew, by ``systemctl set-property`` or a resize in place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.collectors.cgroup import families
from trackside_daemon.collectors.cgroup.reading import bounded, number, table, throttling
from trackside_daemon.collectors.kernel_files import read

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trackside_daemon.collectors.cgroup.reading import Reading
    from trackside_daemon.linux.cgroups import Cgroup
    from trackside_daemon.model.metric import Metric

UNLIMITED = 1 << 62
"""v1 writes none as a number near 2^63."""


class Throttling:
    """How often the smallest limit of CPU time was reached, counted on when another level's becomes the smallest.

    Each level counts for itself, since long before or not at all: only what a level adds while its limit is the smallest
    is the cgroup's.
    """

    def __init__(self) -> None:
        self._level: str | None = None
        self._last: dict[Metric, float] = {}
        self._told: dict[Metric, float] = {}

    def readings(self, level: str) -> list[Reading]:
        """The counts until now; *level* is the directory of the cgroup whose limit is the smallest."""
        counts = {metric: count for metric, _, count in throttling(level) if count is not None}
        for metric, count in counts.items():
            last = self._last.get(metric, 0) if level == self._level else count
            grown = count - last if count >= last else count  # a cgroup that comes again counts from 0
            self._told[metric] = self._told[metric] + grown if metric in self._told else count
        self._level, self._last = level, counts
        return [(metric, (), self._told[metric]) for metric in counts]


class Limits(NamedTuple):
    """What limits a cgroup.

    Attributes:
        readings: The limits that there are.
        fills: The file that tells how much memory is in use where the smallest limit of it is; None without one.
        throttles: The directory of the cgroup with the smallest limit of CPU time; None without one.
    """

    readings: list[Reading]
    fills: str | None
    throttles: str | None


def limits(cgroup: Cgroup) -> Limits:
    """Read them."""
    memory, processes = bounded(cgroup.levels("memory")), bounded(cgroup.levels("pids"))
    cores, throttles = _cpu(cgroup)
    limit, fills = _memory_v1(memory) if "memory" in cgroup.v1 else _memory(memory, "memory.max", "memory.current")
    return Limits(
        [
            (families.LIMIT, (), limit),
            (families.HIGH, (), _smallest(memory, "memory.high")),
            (families.PROCESSES_LIMIT, (), _smallest(processes, "pids.max")),
            (families.CPU_LIMIT, (), cores),
        ],
        fills,
        throttles,
    )


def _smallest(levels: list[str], file: str) -> int | None:
    return _least(number(f"{level}/{file}") for level in levels)


def _least(values: Iterable[int | None]) -> int | None:
    return min((value for value in values if value is not None), default=None)


def _memory(levels: list[str], file: str, used: str) -> tuple[int | None, str | None]:
    """The smallest limit, and the file with what is used of it: of levels that have the same the highest, which has most."""
    found = [(limit, f"{level}/{used}") for level in levels[::-1] if (limit := number(f"{level}/{file}")) is not None]
    limit, at = min(found, key=lambda one: one[0], default=(None, None))
    return (None, None) if limit is None or limit >= UNLIMITED else (limit, at)


def _memory_v1(levels: list[str]) -> tuple[int | None, str | None]:
    """With what the kernel says of those above, of which some may not be seen here, nor what is used of it."""
    limit, at = _memory(levels, "memory.limit_in_bytes", "memory.usage_in_bytes")
    hidden = [table(f"{level}/memory.stat").get(b"hierarchical_memory_limit", UNLIMITED) for level in levels[:1]]
    least = min([*hidden, UNLIMITED if limit is None else limit])
    return (limit, at) if least == limit else (least if least < UNLIMITED else None, None)


def _cpu(cgroup: Cgroup) -> tuple[float | None, str | None]:
    """The smallest limit in cores, and the directory that has it."""
    read_one = _cores_v1 if "cpu" in cgroup.v1 else _cores_v2
    found = [(cores, level) for level in bounded(cgroup.levels("cpu")) if (cores := read_one(level)) is not None]
    return min(found, key=lambda one: one[0], default=(None, None))


def _cores_v2(level: str) -> float | None:
    """``cpu.max`` has quota and period, and ``max`` as the quota for none."""
    try:
        quota, period = read(f"{level}/cpu.max").split()
        return int(quota) / int(period)
    except (OSError, ValueError):
        return None


def _cores_v1(level: str) -> float | None:
    quota, period = number(f"{level}/cpu.cfs_quota_us"), number(f"{level}/cpu.cfs_period_us")
    return quota / period if quota is not None and quota > 0 and period else None
