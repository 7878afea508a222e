"""Read the limits of a cgroup: the smallest of its own and of those above it, as far as they are visible here.

The level with the smallest limit may change at run time, by ``systemctl set-property`` or an in-place resize.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.collectors.cgroup.reading import bounded, number, table, throttling
from trackside_daemon.collectors.kernel_files import read
from trackside_daemon.model.families import cgroup as families

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trackside_daemon.collectors.cgroup.reading import Reading
    from trackside_daemon.linux.cgroups import Cgroup
    from trackside_daemon.model.metric import Metric

UNLIMITED = 1 << 62  # smallest value that means no limit: v1 writes "no limit" as a number near 2^63


class Throttling:
    """Counters of the smallest CPU limit, continued when the limit of another level becomes the smallest.

    Each level has its own counters. Only the increase of a level while its limit is the smallest counts.
    """

    def __init__(self) -> None:
        self._level: str | None = None
        self._last: dict[Metric, float] = {}
        self._totals: dict[Metric, float] = {}

    def readings(self, level: str) -> list[Reading]:
        """Return the current totals; *level* is the directory of the cgroup with the smallest limit."""
        counts = {metric: count for metric, _, count in throttling(level) if count is not None}
        for metric, count in counts.items():
            last = self._last.get(metric, 0) if level == self._level else count
            increase = count - last if count >= last else count  # a recreated cgroup counts from 0
            self._totals[metric] = self._totals[metric] + increase if metric in self._totals else count
        self._level = level
        self._last = counts
        return [(metric, (), self._totals[metric]) for metric in counts]


class Limits(NamedTuple):
    """The limits of a cgroup.

    Attributes:
        readings: The limits, None for those that are not set.
        usage_file: The file with the memory in use at the level of the smallest memory limit; None without a limit.
        cpu_level: The directory of the cgroup with the smallest CPU limit; None without a limit.
    """

    readings: list[Reading]
    usage_file: str | None
    cpu_level: str | None


def limits(cgroup: Cgroup) -> Limits:
    """Read the limits of a cgroup and of those above it."""
    memory = bounded(cgroup.levels("memory"))
    processes = bounded(cgroup.levels("pids"))
    cores, cpu_level = _cpu(cgroup)
    if "memory" in cgroup.v1:
        limit, usage_file = _memory_v1(memory)
    else:
        limit, usage_file = _memory(memory, "memory.max", "memory.current")
    return Limits(
        [
            (families.LIMIT, (), limit),
            (families.HIGH, (), _smallest(memory, "memory.high")),
            (families.PROCESSES_LIMIT, (), _smallest(processes, "pids.max")),
            (families.CPU_LIMIT, (), cores),
        ],
        usage_file,
        cpu_level,
    )


def _smallest(levels: list[str], file: str) -> int | None:
    return _least(number(f"{level}/{file}") for level in levels)


def _least(values: Iterable[int | None]) -> int | None:
    return min((value for value in values if value is not None), default=None)


def _memory(levels: list[str], file: str, used: str) -> tuple[int | None, str | None]:
    """Return the smallest limit, and the usage file of its level."""
    # Of several levels with the same limit, the highest one is used fullest, and min() keeps the first.
    candidates = [
        (limit, f"{level}/{used}") for level in levels[::-1] if (limit := number(f"{level}/{file}")) is not None
    ]
    limit, usage_file = min(candidates, key=lambda candidate: candidate[0], default=(None, None))
    return (None, None) if limit is None or limit >= UNLIMITED else (limit, usage_file)


def _memory_v1(levels: list[str]) -> tuple[int | None, str | None]:
    """Return the same for v1, whose memory.stat includes limits of levels that are not visible here."""
    limit, usage_file = _memory(levels, "memory.limit_in_bytes", "memory.usage_in_bytes")
    hidden = [table(f"{level}/memory.stat").get(b"hierarchical_memory_limit", UNLIMITED) for level in levels[:1]]
    least = min([*hidden, UNLIMITED if limit is None else limit])
    if least == limit:
        return limit, usage_file
    return (least if least < UNLIMITED else None), None


def _cpu(cgroup: Cgroup) -> tuple[float | None, str | None]:
    """Return the smallest CPU limit in cores, and the directory of its level."""
    read_cores = _cores_v1 if "cpu" in cgroup.v1 else _cores_v2
    candidates = [(cores, level) for level in bounded(cgroup.levels("cpu")) if (cores := read_cores(level)) is not None]
    return min(candidates, key=lambda candidate: candidate[0], default=(None, None))


def _cores_v2(level: str) -> float | None:
    """Return the limit of ``cpu.max``, which has quota and period; a quota of ``max`` means no limit."""
    try:
        quota, period = read(f"{level}/cpu.max").split()
        return int(quota) / int(period)
    except (OSError, ValueError):
        return None


def _cores_v1(level: str) -> float | None:
    quota = number(f"{level}/cpu.cfs_quota_us")
    period = number(f"{level}/cpu.cfs_period_us")
    # A quota of -1 means no limit.
    return quota / period if quota is not None and quota > 0 and period else None
