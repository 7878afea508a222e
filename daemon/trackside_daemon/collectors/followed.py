"""Follows data loader workers, and their ranks, to their end."""

from __future__ import annotations

import os
import resource
import select
import signal
from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.collectors.tree import look
from trackside_daemon.exits import exit_code

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trackside_daemon.collectors.names import Life
    from trackside_daemon.collectors.tree import Stat
    from trackside_daemon.member import Member

MOST = 1024
"""So many are followed at once at most, and no more than a quarter of the files that the daemon may open."""

LAG_SECONDS = 0.5
"""Who is killed with its rank may be seen to be dead before the rank is."""

PATIENCE_SECONDS = 30.0
"""How it ended whom nobody has waited for by then, or whose rank is still being torn down, is not told."""

EXITING = 0x4
"""PF_EXITING of <linux/sched.h>: a process that has given up, and may have much memory to give back."""

ASKED = frozenset((0, -signal.SIGTERM, -signal.SIGINT))
"""The exit codes of ends that are none to speak of."""


class Dead(NamedTuple):
    """A worker that ended otherwise than it should, with what `os.waitstatus_to_exitcode` has of it."""

    member: Member
    rank: Life
    pid: int
    code: int
    oom: bool


class _Worker:
    """One that is followed; *over* since when, in seconds of the monotonic clock, once it is."""

    def __init__(self, life: Life, rank: Life, member: Member, pidfd: int) -> None:
        self.life = life
        self.rank = rank
        self.member = member
        self.pidfd = pidfd
        self.over: float | None = None


class Followed:
    """All workers that are followed.

    Args:
        proc: Where the kernel's process files are.
    """

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._epoll = select.epoll()
        self._workers: dict[Life, _Worker] = {}
        self._ranks: dict[Life, int] = {}
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = MOST if files == resource.RLIM_INFINITY else min(MOST, files // 4)

    def __len__(self) -> int:
        return len(self._workers)

    def follow(self, worker: Stat, rank: Stat, member: Member) -> None:
        """From now on, unless it is already, or there are too many."""
        if worker.life in self._workers or len(self._workers) >= self._most:
            return
        if rank.life not in self._ranks and (pidfd := self._open(rank.life)) is not None:
            self._ranks[rank.life] = pidfd
        if rank.life in self._ranks and (pidfd := self._open(worker.life)) is not None:
            one = _Worker(worker.life, rank.life, member, pidfd)
            try:
                self._epoll.register(pidfd, select.EPOLLIN | select.EPOLLONESHOT)
            except OSError:  # over this user's limit of watches
                os.close(pidfd)
            else:
                self._workers[worker.life] = one

    def dead(self, now: float, *, oom: bool) -> list[Dead]:
        """Those that have died since it was asked last; *oom* when the kernel has killed for want of memory lately."""
        if not self._workers:
            return []
        by_pidfd = {one.pidfd: one for one in self._workers.values()} if (ended := self._epoll.poll(0)) else {}
        for pidfd, _ in ended:
            by_pidfd[pidfd].over = now
        return list(self._settled(now, oom=oom))

    def close(self) -> None:
        """Let go of all of them."""
        for pidfd in (*self._ranks.values(), *(one.pidfd for one in self._workers.values())):
            os.close(pidfd)
        self._ranks, self._workers = {}, {}
        self._epoll.close()

    def _settled(self, now: float, *, oom: bool) -> Iterator[Dead]:
        over = [(one, one.over) for one in self._workers.values() if one.over is not None]
        for one, since in over:
            code = exit_code(one.pidfd, *one.life, self._proc)
            fell = None if code is None else self._fell(one, code, now - since, oom=oom)
            if fell is not None or now - since >= PATIENCE_SECONDS:
                os.close(one.pidfd)
                del self._workers[one.life]
            if fell and code is not None:
                yield Dead(one.member, one.rank, one.life.pid, code, oom and code == -signal.SIGKILL)
        if over:
            for rank in self._ranks.keys() - {one.rank for one in self._workers.values()}:
                os.close(self._ranks.pop(rank))

    def _fell(self, one: _Worker, code: int, waited: float, *, oom: bool) -> bool | None:
        """Whether a worker died of itself and not with its rank, or as it was asked; None when that is not known yet."""
        if code in ASKED:
            return False
        if code < 0 and -code not in {signal.SIGKILL, signal.SIGHUP}:
            return True
        pidfd = self._ranks[one.rank]
        if not _is_over(pidfd):
            rank = look(str(self._proc), one.rank.pid)
            ending = rank is None or rank.flags & EXITING
            return None if ending or waited < LAG_SECONDS else True
        end = exit_code(pidfd, *one.rank, self._proc)
        if oom and code == -signal.SIGKILL:
            return end != -signal.SIGKILL
        return None if end is None else end > 0

    def _open(self, life: Life) -> int | None:
        """A pidfd of just this process; None when it is gone, or no more files can be opened."""
        try:
            pidfd = os.pidfd_open(life.pid)
        except OSError:
            return None
        now = look(str(self._proc), life.pid)
        if now is not None and now.life == life:
            return pidfd
        os.close(pidfd)
        return None


def _is_over(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))
