"""Collect memory, CPU time, pressure and limits of the cgroups that training runs in."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from trackside_daemon.collectors.base import HIDDEN, NothingToCollect
from trackside_daemon.collectors.cgroup.limits import Throttling, limits
from trackside_daemon.collectors.cgroup.oom_kills import CgroupOomKills
from trackside_daemon.collectors.cgroup.reading import number, sources
from trackside_daemon.linux.cgroups import Cgroup, Cgroups
from trackside_daemon.linux.oom_counters import Counters
from trackside_daemon.model.families.cgroup import FAMILIES, LIMIT_USED, OOM_KILLS
from trackside_daemon.model.metric import Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trackside_daemon.model.rank_process import RankProcess

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
    metrics = FAMILIES

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
        used = {cgroup.path: cgroup for cgroup in self._by_pid.values() if cgroup is not None and _is_visible(cgroup)}
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


def _is_visible(cgroup: Cgroup) -> bool:
    return bool(cgroup.v2 or any(cgroup.v1.values()))
