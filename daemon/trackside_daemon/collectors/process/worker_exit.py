"""Follows data loader workers, and their ranks, to their end."""

from __future__ import annotations

import errno
import logging
import os
import resource
import select
import signal
from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.collectors.kernel_files import read
from trackside_daemon.collectors.process.process_tree import DESCENDANTS, look
from trackside_daemon.linux.process_exit import exit_code

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trackside_daemon.collectors.process.process_names import Life
    from trackside_daemon.collectors.process.process_tree import Stat
    from trackside_daemon.linux.oom import OomKills, Watched
    from trackside_daemon.model.rank_process import RankProcess

LAG_SECONDS = 0.5
"""A death is judged so much later: its rank has then ended too, if it was killed with it, or has told of its room."""

PATIENCE_SECONDS = 30.0
"""How it ended whom nobody has waited for by then, or whose rank is still being torn down, is not told."""

EXITING = 0x4
"""PF_EXITING of <linux/sched.h>: a process that has given up, and may have much memory to give back."""

ASKED = frozenset((0, -signal.SIGTERM, -signal.SIGINT))
"""The exit codes of ends that are none to speak of."""

OWN = frozenset(
    (signal.SIGBUS, signal.SIGSEGV, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGSYS, signal.SIGTRAP)
)
"""The signals that a process brings upon itself; any other may have come to its rank as well."""

log = logging.getLogger("trackside")


class Dead(NamedTuple):
    """A worker that ended otherwise than it should, with what `os.waitstatus_to_exitcode` has of it."""

    member: RankProcess
    rank: Life
    pid: int
    code: int
    oom: bool


class _Process:
    """One that is followed.

    Attributes:
        over: Since when it is, in seconds of the monotonic clock; None while it lives.
        code: How it ended, once that is known.
    """

    def __init__(self, life: Life, pidfd: int) -> None:
        self.life = life
        self.pidfd = pidfd
        self.over: float | None = None
        self.code: int | None = None

    def ask(self, proc: Path) -> int | None:
        """How it ended: soon after, as it is known for as long as nobody has waited for it, on an older Linux."""
        if self.code is None:
            self.code = exit_code(self.pidfd, *self.life, proc)
        return self.code


class _Rank(_Process):
    """A rank; when *takes_along*, the kernel kills its workers before it is over, as pid 1 of its namespace."""

    def __init__(self, life: Life, pidfd: int, *, takes_along: bool) -> None:
        super().__init__(life, pidfd)
        self.takes_along = takes_along


class _Worker(_Process):
    """A worker; *behind* when its rank was ending before it did, *oom* when the kernel had killed in its cgroup then."""

    def __init__(self, life: Life, pidfd: int, rank: _Rank, member: RankProcess, watched: Watched) -> None:
        super().__init__(life, pidfd)
        self.rank = rank
        self.member = member
        self.watched = watched
        self.behind = self.oom = False


class Followed:
    """All workers that are followed, by pidfds that tell in which order they end.

    Args:
        proc: Where the kernel's process files are.
        kills: The OOM killer's, of the cgroups.
    """

    def __init__(self, proc: Path, kills: OomKills) -> None:
        self._proc = proc
        self._kills = kills
        self._epoll = select.epoll()
        self._processes: dict[int, _Process] = {}
        self._workers: dict[Life, _Worker] = {}
        self._ranks: dict[Life, _Rank] = {}
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = DESCENDANTS if files == resource.RLIM_INFINITY else min(DESCENDANTS, files // 4)
        self._told = False

    def __len__(self) -> int:
        return len(self._workers)

    def follow(self, worker: Stat, rank: Stat, member: RankProcess, now: float) -> None:
        """From now on, unless it is already, or is over, or the daemon may not open so many files."""
        if worker.life in self._workers or worker.state == "Z":  # of one that nobody waits for, all has been told
            return
        if len(self._workers) >= self._most:
            self._tell_limit(f"it may open {self._most * 4} files, and leaves most of them to others")
            return
        leader = self._ranks.get(rank.life) or self._lead(rank.life)
        if leader is not None and (pidfd := self._open(worker.life)) is not None:
            watched = self._kills.watch(worker.pid, now)
            self._workers[worker.life] = one = _Worker(worker.life, pidfd, leader, member, watched)
            self._processes[pidfd] = one

    def leave(self, life: Life) -> None:
        """It has turned out to be no worker."""
        if (one := self._workers.get(life)) is not None and one.over is None:
            self._let_go(one)

    def dead(self, now: float) -> list[Dead]:
        """Those that have died since it was asked last."""
        if not self._workers:
            return []
        self._kills.tick(now)
        for pidfd, _ in self._epoll.poll(0):
            if (one := self._processes.get(pidfd)) is not None:
                self._end(one, now)
        return list(self._settled(now))

    def close(self) -> None:
        """Let go of all of them."""
        for worker in list(self._workers.values()):
            self._let_go(worker)
        self._let_ranks_go()
        self._epoll.close()

    def _end(self, one: _Process, now: float) -> None:
        one.over = now
        one.ask(self._proc)
        if isinstance(one, _Worker):
            rank = one.rank
            one.behind = rank.over is not None or (rank.takes_along and self._is_ending(rank))
            one.oom = one.code in {None, -signal.SIGKILL} and self._kills.killed(one.watched, now)

    def _settled(self, now: float) -> Iterator[Dead]:
        over = [(one, one.over) for one in self._workers.values() if one.over is not None]
        for one, since in over:
            code = one.ask(self._proc)
            fell = None if code is None else self._fell(one, code, now - since)
            if fell is not None or now - since >= PATIENCE_SECONDS:
                self._let_go(one)
            if fell and code is not None:
                yield Dead(one.member, one.rank.life, one.life.pid, code, one.oom and code == -signal.SIGKILL)
        if over:
            self._let_ranks_go()

    def _fell(self, one: _Worker, code: int, waited: float) -> bool | None:
        """Whether a worker died of itself and not with its rank, or as it was asked; None when that is not known yet."""
        if code in ASKED:
            return False
        if waited < LAG_SECONDS:
            return None
        return -code in OWN or self._fell_alone(one, code)

    def _fell_alone(self, one: _Worker, code: int) -> bool | None:
        """Whether what ended a worker did not end its rank; None when that is not known yet."""
        if one.behind:
            return False
        if one.rank.over is None:
            return None if self._is_ending(one.rank) else True
        end = one.rank.ask(self._proc)
        if end is None:
            return None
        return end != -signal.SIGKILL if one.oom and code == -signal.SIGKILL else end > 0

    def _is_ending(self, rank: _Rank) -> bool:
        """Whether it has begun to end, and perhaps is over by now."""
        now = look(str(self._proc), rank.life.pid)
        return now is None or now.life != rank.life or bool(now.flags & EXITING)

    def _lead(self, life: Life) -> _Rank | None:
        """Follow a rank, too; None when it is gone."""
        pidfd = self._open(life)
        if pidfd is None:
            return None
        self._ranks[life] = rank = _Rank(life, pidfd, takes_along=_is_first(self._proc, life.pid))
        self._processes[pidfd] = rank
        return rank

    def _open(self, life: Life) -> int | None:
        """A pidfd of just this process, which is polled; None when it is gone, or it cannot be followed."""
        try:
            pidfd = os.pidfd_open(life.pid)
        except OSError as error:
            if error.errno != errno.ESRCH:
                self._tell_limit(str(error.strerror))
            return None
        now = look(str(self._proc), life.pid)
        if now is not None and now.life == life:
            try:
                self._epoll.register(pidfd, select.EPOLLIN | select.EPOLLONESHOT)
            except OSError as error:  # over this user's limit of watches
                self._tell_limit(str(error.strerror))
            else:
                return pidfd
        os.close(pidfd)
        return None

    def _let_go(self, one: _Worker) -> None:
        self._kills.release(one.watched)
        del self._workers[one.life]
        self._close(one)

    def _let_ranks_go(self) -> None:
        """Those whose workers are all over."""
        for life in self._ranks.keys() - {one.rank.life for one in self._workers.values()}:
            self._close(self._ranks.pop(life))

    def _close(self, one: _Process) -> None:
        del self._processes[one.pidfd]
        self._epoll.unregister(one.pidfd)
        os.close(one.pidfd)

    def _tell_limit(self, why: str) -> None:
        if not self._told:
            self._told = True
            log.warning(
                "the daemon follows %d data loader workers and can follow no more, so that deaths of others are not told: "
                "%s; raise LimitNOFILE= of its unit, or ulimit -n, and start it again",
                *(len(self._workers), why),
            )


def _is_first(proc: Path, pid: int) -> bool:
    """Whether it is pid 1 of its namespace (/proc/PID/status NSpid)."""
    try:
        status = read(f"{proc}/{pid}/status")
    except OSError:
        return False
    return status.partition(b"\nNSpid:")[2].partition(b"\n")[0].split()[-1:] == [b"1"]
