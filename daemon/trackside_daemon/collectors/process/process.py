"""The training's processes: what each rank and its data loaders take."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.collectors.base import HIDDEN, NothingToCollect
from trackside_daemon.collectors.process.child_processes import Below, Whose
from trackside_daemon.collectors.process.process_tree import Tree
from trackside_daemon.collectors.process.rank_memory import Own
from trackside_daemon.collectors.process.roles import Role, Roles
from trackside_daemon.collectors.process.shm import Rooms
from trackside_daemon.collectors.process.smaps import Smaps
from trackside_daemon.collectors.process.worker_deaths import Deaths
from trackside_daemon.linux.oom import OomKills

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from trackside_daemon.collectors.process.process_tree import Stat
    from trackside_daemon.model.metric import Sample
    from trackside_daemon.model.rank_process import RankProcess
    from trackside_daemon.model.records import Record


class Process(NamedTuple):
    """One process of a training, as ``/api/v1/processes`` has it.

    Attributes:
        state: Its main thread's, a letter as in /proc/PID/stat.
        run: The run's name; *run_id* names it on all machines.
        resident_bytes: Memory in RAM.
        cpu_seconds: Of all its threads, without its children.
        started: In Unix seconds; None when the kernel does not tell when it booted.
    """

    pid: int
    parent: int
    role: Role
    comm: str
    state: str
    run: str
    run_id: str
    rank: int
    resident_bytes: int
    cpu_seconds: float
    threads: int
    started: float | None


class ProcessCollector:
    """The training's processes: what each rank and its data loaders take.

    Args:
        members: The processes of this machine that train.
        proc: Where the kernel's process files are.
        sys: Where the host's /sys is.
        smaps: Read what takes a lock of the process's memory too.
        clock: Seconds of the monotonic clock.
        wall: Unix time, in seconds.

    Attributes:
        seen: The processes in the last tick: each rank, then those below it.
    """

    name = "process"
    metrics = (*Own.metrics, *Smaps.metrics, *Below.metrics, *Deaths.metrics)

    def __init__(
        self,
        members: Callable[[], Sequence[RankProcess]],
        proc: Path = Path("/proc"),
        sys: Path = Path("/sys"),
        *,
        smaps: bool = False,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.seen: tuple[Process, ...] = ()
        self._members = members
        self._clock = clock
        self._wall = wall
        self._tree = Tree(proc)
        self._own = Own(proc)
        self._below = Below(proc)
        self._roles = Roles()
        self._rooms = Rooms()
        self._deaths = Deaths(proc, OomKills(proc, sys))
        self._smaps = Smaps(proc) if smaps else None
        self._tick, self._page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
        self._began: dict[tuple[str, int, int], int] = {}

    def collect(self) -> list[Sample]:
        """What each rank takes and what those below it do; nothing when nobody trains.

        Raises:
            NothingToCollect: Processes train here, and the pid of none is known.
        """
        now = self._clock()
        every = self._members()
        members = [member for member in every if member.pid]
        self._rooms.hear(members, now)
        self._below.begin(now)
        trees = list(self._trees(members, now))
        samples = [sample for tree in trees for sample in self._of(tree, now)]
        samples += self._below.samples()
        self._deaths.look(now, self._wall(), self._rooms.most())
        ranks = {_whose(member) for member in members}
        samples += self._deaths.samples(ranks, now)
        lives = [tree.rank.life for tree in trees]
        if self._smaps is not None:
            samples += self._smaps.samples(lives, now)
        self._own.keep(lives)
        self._below.keep(ranks, {member.pid for member in members})
        self._remember(trees, members)
        if every and not members:
            raise NothingToCollect(HIDDEN)
        return samples

    def reports(self) -> Sequence[Record]:
        """What has befallen the processes since it was asked last, for the history."""
        return self._deaths.reports()

    def close(self) -> None:
        """Follow nobody any more; it collects no more after this."""
        self._deaths.close()

    def _trees(self, members: Iterable[RankProcess], now: float) -> Iterator[_Parts]:
        """Who is below each rank; of several runs in one process all is the oldest's."""
        by_pid: dict[int, list[RankProcess]] = {}
        for member in members:
            by_pid.setdefault(member.pid, []).append(member)
        self._roles.begin()
        for pid, (rank, *below) in self._tree.walk(by_pid, now).items():
            if its := [member for member in by_pid[pid] if self._is_still(member, rank)]:
                yield _Parts(its[0], rank, below, self._roles.of(below))

    def _is_still(self, member: RankProcess, process: Stat) -> bool:
        """Whether it is the process that the rank's pid was at first, and not the next one that has it."""
        return self._began.setdefault((member.run_id, member.attempt, member.pid), process.start) == process.start

    def _of(self, tree: _Parts, now: float) -> Iterator[Sample]:
        workers, others = tree.having("dataloader"), tree.having("other")
        self._deaths.leave(other.life for other in others)
        self._deaths.follow(workers, tree.rank, tree.member, now)
        self._below.workers(_whose(tree.member), workers)
        yield from self._own.samples(tree.rank, now)
        yield from self._below.others(tree.rank.pid, others)

    def _remember(self, trees: Sequence[_Parts], members: Iterable[RankProcess]) -> None:
        current = {(member.run_id, member.attempt, member.pid) for member in members}
        self._began = {key: start for key, start in self._began.items() if key in current}
        self.seen = tuple(
            self._seen(one, part or "other", tree.member)
            for tree in trees
            for one, part in zip((tree.rank, *tree.below), ("rank", *tree.roles), strict=True)
        )

    def _seen(self, one: Stat, part: Role, member: RankProcess) -> Process:
        cpu = (one.user + one.system) / self._tick
        return Process(
            *(one.pid, one.parent, part, one.comm, one.state, member.run, member.run_id, member.rank),
            *(one.resident * self._page, cpu, one.threads, self._own.started(one)),
        )


class _Parts(NamedTuple):
    """A rank, those *below* it, and the role of each of these, None of who is in neither sum yet."""

    member: RankProcess
    rank: Stat
    below: list[Stat]
    roles: list[Role | None]

    def having(self, part: Role) -> list[Stat]:
        return [one for one, its in zip(self.below, self.roles, strict=True) if its == part]


def _whose(member: RankProcess) -> Whose:
    return Whose(member.run, str(member.rank))
