"""Collect memory, CPU time, pressure and limits of the cgroups that training runs in."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.collectors.base import HIDDEN, NothingToCollect
from trackside_daemon.collectors.cgroup.reading import bounded, number, sources, table, throttling
from trackside_daemon.collectors.kernel_files import read
from trackside_daemon.linux.cgroups import Cgroup, Cgroups
from trackside_daemon.linux.oom import Counters, kill_counts
from trackside_daemon.model.families import cgroup as families
from trackside_daemon.model.families.cgroup import LIMIT_USED, OOM_KILLS
from trackside_daemon.model.metric import Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from trackside_daemon.collectors.cgroup.reading import Reading
    from trackside_daemon.model.metric import Metric
    from trackside_daemon.model.rank_process import RankProcess

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


class CgroupLimits(NamedTuple):
    """The limits of a cgroup."""

    readings: list[Reading]  # the limits, None for those that are not set
    # The file with the memory in use at the level of the smallest memory limit; None without a limit.
    usage_file: str | None
    cpu_level: str | None  # the directory of the cgroup with the smallest CPU limit; None without a limit


def limits(cgroup: Cgroup) -> CgroupLimits:
    """Read the limits of a cgroup and of those above it."""
    memory = bounded(cgroup.levels("memory"))
    processes = bounded(cgroup.levels("pids"))
    cores, cpu_level = _cpu(cgroup)
    if "memory" in cgroup.v1:
        limit, usage_file = _memory_v1(memory)
    else:
        limit, usage_file = _memory(memory, "memory.max", "memory.current")
    return CgroupLimits(
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


FIND_SECONDS = 5.0  # interval of looking up the cgroup of each process, which may be moved
LIMITS_SECONDS = 10.0  # interval of reading limits
# Longer than the ten minutes within which the rule OomKilled counts an increase.
HOLD_SECONDS = 900.0  # time for which the OOM kills of a cgroup are served after it is gone or unused


class _FollowedCgroup:
    """One cgroup with its counters; times are seconds of the monotonic clock."""

    def __init__(self, cgroup: Cgroup, kills: CgroupOomKills, throttling: Throttling, now: float) -> None:
        self.cgroup = cgroup
        self.kills = kills
        self.throttling = throttling
        self.used_at = now
        self._sources = sources(cgroup)
        self._limits = limits(cgroup)
        self._limits_due = now + LIMITS_SECONDS

    @property
    def is_root(self) -> bool:
        """True for the root of every visible hierarchy."""
        return not self._sources

    def samples(self, now: float) -> list[Sample]:
        """Return all samples except the OOM kills; none when the cgroup is gone."""
        if now >= self._limits_due:
            self._limits = limits(self.cgroup)
            self._limits_due = now + LIMITS_SECONDS
        readings = [reading for reader, directory in self._sources for reading in reader(directory)]
        if all(value is None for _, _, value in readings):
            return []
        if self._limits.usage_file is not None:
            readings.append((LIMIT_USED, (), number(self._limits.usage_file)))
        if self._limits.cpu_level is not None:
            readings += self.throttling.readings(self._limits.cpu_level)
        readings += self._limits.readings
        path = (self.cgroup.path,)
        return [Sample(metric, path + labels, value) for metric, labels, value in readings if value is not None]


class CgroupCollector:
    """The cgroups of all living rank processes, each once.

    Args:
        rank_processes: Returns the processes of this machine that train.
        proc: Path of a procfs of the pid namespace of *rank_processes*.
        sys: Path of the host's sysfs.
        root: Directory below which the mount points of ``self/mountinfo`` lie.
        clock: Seconds of the monotonic clock.
    """

    name = "cgroup"

    def __init__(
        self,
        rank_processes: Callable[[], Sequence[RankProcess]],
        proc: Path,
        sys: Path = Path("/sys"),
        *,
        root: Path = Path("/"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rank_processes = rank_processes
        self._cgroups = Cgroups(proc, sys, root)
        self._machine = proc / "vmstat"
        self._clock = clock
        self._counters = Counters()
        self._by_pid: dict[int, Cgroup | None] = {}
        self._find_due = 0.0
        self._followed: dict[str, _FollowedCgroup] = {}

    def collect(self) -> list[Sample]:
        """Return the samples of each cgroup, and for `HOLD_SECONDS` the OOM kills of those that are gone.

        Raises:
            NothingToCollect: Processes train here, but none has a visible cgroup below the root.
        """
        now = self._clock()
        pids = {process.pid for process in self._rank_processes()}
        # The pid is 0 where it is hidden from this pid namespace.
        self._find(pids - {0}, now)
        used = {
            cgroup.path: cgroup for cgroup in self._by_pid.values() if cgroup and (cgroup.v2 or any(cgroup.v1.values()))
        }
        self._follow(used, now)
        # All at once, before the loop: `CgroupOomKills` compares the counter of a cgroup with those above it.
        self._counters.read(now)
        samples = []
        for path, followed in list(self._followed.items()):
            current = followed.samples(now) if path in used else []
            if current:
                followed.used_at = now
                samples += current
            if now - followed.used_at > HOLD_SECONDS:
                self._followed.pop(path).kills.release()
            elif (kills := followed.kills.read()) is not None:
                samples.append(Sample(OOM_KILLS, (path,), kills))
        if not samples:
            self._explain(pids, used)
        return samples

    def _find(self, pids: set[int], now: float) -> None:
        """Find the cgroups of new processes, and every `FIND_SECONDS` those of all processes."""
        if now >= self._find_due:
            self._by_pid = {}
            self._find_due = now + FIND_SECONDS
        self._by_pid = {pid: self._by_pid[pid] if pid in self._by_pid else self._cgroups.of(pid) for pid in pids}

    def _follow(self, used: dict[str, Cgroup], now: float) -> None:
        """Follow new cgroups, and follow anew those that were recreated or have moved to another directory."""
        for path, cgroup in used.items():
            before = self._followed.get(path)
            if before is not None and before.cgroup == cgroup and not before.kills.is_recreated:
                continue
            # The path is up to `FIND_SECONDS` old, so the cgroup may be gone.
            if _exists(cgroup):
                # Continued, because the totals must not fall when a cgroup is recreated or moved.
                throttling = Throttling() if before is None else before.throttling
                self._followed[path] = _FollowedCgroup(cgroup, self._kills(before, cgroup, now), throttling, now)

    def _kills(self, before: _FollowedCgroup | None, cgroup: Cgroup, now: float) -> CgroupOomKills:
        """Return the OOM kills of a cgroup, continued from its predecessor *before* of the same name."""
        # A counter that fell back to 0 would hide the next kill.
        earlier = 0
        if before is not None and before.cgroup.levels("memory") == cgroup.levels("memory"):
            if not before.kills.is_recreated:
                return before.kills
            earlier = before.kills.total or 0
        if before is not None:
            before.kills.release()
        return CgroupOomKills(self._counters, cgroup, self._machine, now, earlier)

    def _explain(self, pids: set[int], used: dict[str, Cgroup]) -> None:
        """Raise `NothingToCollect` with the reason why no cgroup of the training processes has samples."""
        if any(cgroup is not None for cgroup in self._by_pid.values()) and not used:
            raise NothingToCollect(
                "the cgroups of the processes that train are not mounted here; mount the host's /sys and name it with "
                "--path.sysfs, or start this daemon in the host's cgroup namespace"
            )
        if any(followed.is_root for path, followed in self._followed.items() if path in used):
            raise NothingToCollect(
                "the processes that train are in no cgroup of their own; start them by Slurm, in a container, or with "
                "systemd-run --scope"
            )
        if pids == {0}:
            raise NothingToCollect(HIDDEN)


def _exists(cgroup: Cgroup) -> bool:
    return all(levels[0].is_dir() for levels in (*cgroup.v1.values(), cgroup.v2) if levels)
