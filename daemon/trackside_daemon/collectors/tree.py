"""The processes that ranks have started, of all depths, and what part they play.

Only files that take no lock of the process's memory are read: a rank that faults pages in is never held up.
"""

from __future__ import annotations

import logging
import os
from itertools import islice
from typing import TYPE_CHECKING, Literal, NamedTuple

from trackside_daemon.collectors.files import read
from trackside_daemon.collectors.names import Life

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

LATER_SECONDS = 10.0
"""How often the children of other threads than the main one are looked for, or all where the kernel lists none."""

AT_ONCE = 512
"""So many threads, or processes, are asked in one walk at most, and the others in the next ones."""

DESCENDANTS = 4096
"""So many processes below the ranks at most."""

WORKER = "pt_data_worker"
"""What PyTorch calls the processes of its data loader since 2024, however they are started."""

log = logging.getLogger("trackside")

Role = Literal["rank", "dataloader", "other"]


class Stat(NamedTuple):
    """A process, from /proc/PID/stat.

    Attributes:
        comm: Its main thread's name.
        state: Its main thread's: R, S, D, Z, T and others.
        parent: The pid of who started it, or has taken it over.
        flags: PF_… of the kernel's <linux/sched.h>.
        major_faults: Its own, as *user* and *system*, the clock ticks that all its threads have run.
        start: Clock ticks from boot to its start.
        resident: Pages.
        stack: Where its stack begins, which those have in common that were forked and have not called exec; 0 when the
            daemon may not know.
    """

    pid: int
    comm: str
    state: str
    parent: int
    flags: int
    major_faults: int
    user: int
    system: int
    threads: int
    start: int
    resident: int
    stack: int

    @property
    def life(self) -> Life:
        """What tells it from another of its pid."""
        return Life(self.pid, self.start)


def look(proc: str, pid: int) -> Stat | None:
    """The process; None when it is gone, or hidden."""
    try:
        data = read(f"{proc}/{pid}/stat")
        begin, end = data.index(b"(") + 1, data.rindex(b")")
        fields = data[end + 1 :].split(None, 26)
        return Stat(
            *(pid, data[begin:end].decode(errors="replace"), fields[0].decode(), int(fields[1]), int(fields[6])),
            *(int(fields[9]), int(fields[11]), int(fields[12]), int(fields[17]), int(fields[19])),
            *(int(fields[21]), int(fields[25])),
        )
    except (OSError, ValueError, IndexError):
        return None


def role(process: Stat, rank: Stat, *, named: bool = False) -> Role:
    """The part that a process plays below a rank.

    A data loader's worker is `WORKER` by name. Before PyTorch named them, one was a fork of its rank, as are helpers of
    the `multiprocessing` module, so a fork counts where no worker has been *named*.
    """
    if process.comm == WORKER:
        return "dataloader"
    forked = process.stack == rank.stack != 0
    return "dataloader" if forked and not named else "other"


class Tree:
    """Walks down from the ranks.

    Args:
        proc: Where the kernel's process files are; its ``thread-self`` says whether threads list their children there.
    """

    def __init__(self, proc: Path) -> None:
        self._proc = str(proc)
        self._lists = (proc / "thread-self" / "children").exists()
        self._children: dict[int, list[int]] = {}
        self._before: dict[int, list[int]] = {}
        self._more: dict[int, set[int]] = {}
        self._unasked: list[tuple[int, str]] = []
        self._due = 0.0
        self._told = False

    def walk(self, ranks: Collection[int], now: float) -> dict[int, list[Stat]]:
        """Each rank that lives, then its descendants, each before its own; a rank below another stands for itself.

        Args:
            ranks: Their pids.
            now: In seconds of the monotonic clock.
        """
        self._look_further(ranks, now)
        self._before, self._children = self._children, {}
        trees: dict[int, list[Stat]] = {}
        left = DESCENDANTS
        for pid in ranks:
            if (rank := look(self._proc, pid)) is not None:
                trees[pid] = [rank, *islice(self._below(rank, ranks), left + 1)]
                left -= len(trees[pid]) - 1
                if left < 0:
                    trees[pid].pop()
                    left = 0
                    self._tell_cut()
        return trees

    def _below(self, rank: Stat, ranks: Collection[int]) -> Iterator[Stat]:
        """Its descendants. One is a child while it says so itself, so a pid's next process is not taken for it."""
        waiting = self._children_of(rank.pid, ranks)
        while waiting:
            one = waiting.pop()
            if one.pid not in self._children:
                yield one
                waiting += self._children_of(one.pid, ranks)

    def _children_of(self, pid: int, ranks: Collection[int]) -> list[Stat]:
        """Those that are no ranks, the first last."""
        listed = self._listed(pid, str(pid)) if self._lists else ()
        pids = {*listed, *self._before.get(pid, ()), *self._more.get(pid, ())}.difference(ranks)
        looks = (look(self._proc, child) for child in sorted(pids, reverse=True))
        found = [child for child in looks if child is not None and child.parent == pid]
        self._children[pid] = [child.pid for child in found]
        return found

    def _listed(self, pid: int, thread: str) -> list[int]:
        """The children that a thread has started (/proc/PID/task/TID/children)."""
        try:
            return list(map(int, read(f"{self._proc}/{pid}/task/{thread}/children").split()))
        except OSError:  # it is over
            return []

    def _look_further(self, ranks: Collection[int], now: float) -> None:
        """What costs too much for each tick: all threads of these, or all processes of the machine, a part at a time."""
        if not self._unasked and now >= self._due and ranks:
            self._due, self._more = now + LATER_SECONDS, {}
            if self._lists:
                known = {*ranks, *self._children}
                self._unasked = [(pid, thread) for pid in known for thread in _names(f"{self._proc}/{pid}/task")]
            else:
                self._unasked = [(int(pid), "") for pid in _names(self._proc)]
        part, self._unasked = self._unasked[:AT_ONCE], self._unasked[AT_ONCE:]
        for pid, thread in part:
            self._ask(pid, thread)

    def _ask(self, pid: int, thread: str) -> None:
        """Learn of the children of a thread, or of the parent of a process."""
        if thread:
            self._more.setdefault(pid, set()).update(self._listed(pid, thread))
        elif (process := look(self._proc, pid)) is not None:
            self._more.setdefault(process.parent, set()).add(pid)

    def _tell_cut(self) -> None:
        if not self._told:
            self._told = True
            log.warning(
                "the ranks have more than %d processes below them, and the rest is left out of all that is shown of "
                "them; does the training start processes without end?",
                DESCENDANTS,
            )


def _names(directory: str) -> list[str]:
    """Those in a directory that are numbers; none when it is gone."""
    try:
        return [name for name in os.listdir(directory) if name.isdecimal()]  # noqa: PTH208  a thousand names a time
    except OSError:
        return []
