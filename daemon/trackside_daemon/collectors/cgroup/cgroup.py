"""Memory, CPU and pressure of the cgroups that training runs in: those of the job, not of the machine."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from trackside_daemon.collectors.base import HIDDEN, NothingToCollect
from trackside_daemon.collectors.cgroup.families import FAMILIES, LIMIT_USED, OOM_KILLS
from trackside_daemon.collectors.cgroup.limits import Throttling, limits
from trackside_daemon.collectors.cgroup.oom_kills import HeldKills
from trackside_daemon.collectors.cgroup.reading import number, sources
from trackside_daemon.linux.cgroups import Cgroup, Cgroups
from trackside_daemon.linux.oom_counters import Counters
from trackside_daemon.model.metric import Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trackside_daemon.model.rank_process import RankProcess

FIND_SECONDS = 5.0
"""How often it is looked up where a process is: it may be moved."""

LIMITS_SECONDS = 10.0
"""How often limits are read."""

HOLD_SECONDS = 900.0
"""So long the OOM kills of a cgroup stay on the page that is gone, or that nobody trains in."""


class _Followed:
    """One cgroup, from *now* on; times are seconds of the monotonic clock."""

    def __init__(self, cgroup: Cgroup, kills: HeldKills, throttling: Throttling, now: float) -> None:
        self.cgroup = cgroup
        self.kills = kills
        self.throttling = throttling
        self.used_at = now
        self._sources = sources(cgroup)
        self._limits, self._limits_due = limits(cgroup), now + LIMITS_SECONDS

    @property
    def is_root(self) -> bool:
        """Whether it is the root of every hierarchy that is seen."""
        return not self._sources

    def samples(self, now: float) -> list[Sample]:
        """All but the OOM kills."""
        if now >= self._limits_due:
            self._limits, self._limits_due = limits(self.cgroup), now + LIMITS_SECONDS
        readings = [reading for reader, directory in self._sources for reading in reader(directory)]
        if all(value is None for _, _, value in readings):  # it is gone
            return []
        if self._limits.fills is not None:
            readings.append((LIMIT_USED, (), number(self._limits.fills)))
        if self._limits.throttles is not None:
            readings += self.throttling.readings(self._limits.throttles)
        readings += self._limits.readings
        path = (self.cgroup.path,)
        return [Sample(metric, path + labels, value) for metric, labels, value in readings if value is not None]


class CgroupCollector:
    """The cgroups of all living ranks, each once.

    Args:
        members: The processes of this machine that train.
        proc: Where procfs is mounted, by the pids that *members* have.
        sys: Where the host's /sys is.
        root: As `trackside_daemon.linux.cgroups.Cgroups` has it.
        clock: Seconds of the monotonic clock.
    """

    name = "cgroup"
    metrics = FAMILIES

    def __init__(
        self,
        members: Callable[[], Sequence[RankProcess]],
        proc: Path,
        sys: Path = Path("/sys"),
        *,
        root: Path = Path("/"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._members = members
        self._cgroups = Cgroups(proc, sys, root)
        self._machine = proc / "vmstat"
        self._clock = clock
        self._counters = Counters()
        self._found: dict[int, Cgroup | None] = {}
        self._find_due = 0.0
        self._followed: dict[str, _Followed] = {}

    def collect(self) -> list[Sample]:
        """Of each cgroup what its files say, and for a while the OOM kills of those that are gone.

        Raises:
            NothingToCollect: Processes train here, and the cgroup of none can be seen or told from the machine.
        """
        now = self._clock()
        pids = {member.pid for member in self._members()}
        self._find(pids - {0}, now)
        used = {found.path: found for found in self._found.values() if found is not None and _is_seen(found)}
        self._follow(used, now)
        self._counters.look(now)
        samples = []
        for path, one in list(self._followed.items()):
            told = one.samples(now) if path in used else []
            if told:
                one.used_at = now
                samples += told
            if now - one.used_at > HOLD_SECONDS:
                self._followed.pop(path).kills.release()
            elif (kills := one.kills.look()) is not None:
                samples.append(Sample(OOM_KILLS, (path,), kills))
        if not samples:
            self._explain(pids, used)
        return samples

    def _find(self, pids: set[int], now: float) -> None:
        """Look up where processes are, those that are known only now and then."""
        if now >= self._find_due:
            self._found, self._find_due = {}, now + FIND_SECONDS
        self._found = {pid: self._found[pid] if pid in self._found else self._cgroups.of(pid) for pid in pids}

    def _follow(self, used: dict[str, Cgroup], now: float) -> None:
        """Begin with cgroups that are new, and go on with those that have come again, or are not where they were."""
        for path, cgroup in used.items():
            known = self._followed.get(path)
            if known is not None and known.cgroup == cgroup and not known.kills.is_back:
                continue
            if _is_there(cgroup):
                throttling = Throttling() if known is None else known.throttling
                self._followed[path] = _Followed(cgroup, self._kills(known, cgroup, now), throttling, now)

    def _kills(self, known: _Followed | None, cgroup: Cgroup, now: float) -> HeldKills:
        """Those of a cgroup, after what is *known* under its name: a count that fell would hide the next kill."""
        before = 0
        if known is not None and known.cgroup.levels("memory") == cgroup.levels("memory"):
            if not known.kills.is_back:
                return known.kills
            before = known.kills.total or 0
        if known is not None:
            known.kills.release()
        return HeldKills(self._counters, cgroup, self._machine, now, before)

    def _explain(self, pids: set[int], used: dict[str, Cgroup]) -> None:
        """Say why there is nothing of processes that train and live."""
        if any(found is not None for found in self._found.values()) and not used:
            raise NothingToCollect(
                "the cgroups of the processes that train are not mounted here; mount the host's /sys and name it with "
                "--path.sysfs, or start this daemon in the host's cgroup namespace"
            )
        if any(one.is_root for path, one in self._followed.items() if path in used):
            raise NothingToCollect(
                "the processes that train are in no cgroup of their own; start them by Slurm, in a container, or with "
                "systemd-run --scope"
            )
        if pids == {0}:
            raise NothingToCollect(HIDDEN)


def _is_there(cgroup: Cgroup) -> bool:
    return all(levels[0].is_dir() for levels in (*cgroup.v1.values(), cgroup.v2) if levels)


def _is_seen(cgroup: Cgroup) -> bool:
    return bool(cgroup.v2 or any(cgroup.v1.values()))
