"""The processes that ranks have started, of all depths.

Only files that take no lock of the process's memory are read: a rank that faults pages in is never held up.
"""

from __future__ import annotations

import logging
import os
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.collectors.kernel_files import read
from trackside_daemon.collectors.process.process_names import Life

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from pathlib import Path

LATER_SECONDS = 10.0
"""How often the threads of those below the ranks are asked for their children, or all where the kernel lists none."""

AT_ONCE = 512
"""So many threads, or processes, are asked in one walk at most (3 µs each), and the others in the next ones."""

DESCENDANTS = 4096
"""So many processes below the ranks at most."""

log = logging.getLogger("trackside")


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

    @property
    def life(self) -> Life:
        """What tells it from another of its pid."""
        return Life(self.pid, self.start)


def look(proc: str, pid: int) -> Stat | None:
    """The process; None when it is gone, or hidden."""
    try:
        data = read(f"{proc}/{pid}/stat")
        begin, end = data.index(b"(") + 1, data.rindex(b")")
        fields = data[end + 1 :].split(None, 22)
        return Stat(
            *(pid, data[begin:end].decode(errors="replace"), fields[0].decode(), int(fields[1]), int(fields[6])),
            *(int(fields[9]), int(fields[11]), int(fields[12]), int(fields[17]), int(fields[19])),
            int(fields[21]),
        )
    except (OSError, ValueError, IndexError):
        return None


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
        self._starters: dict[int, set[str]] = {}
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
        threads = (str(pid), *self._starters.get(pid, ())) if self._lists else ()
        listed = [child for thread in threads for child in self._listed(pid, thread)]
        pids = {*listed, *self._before.get(pid, ()), *self._more.get(pid, ())}.difference(ranks)
        looks = (look(self._proc, child) for child in sorted(pids, reverse=True))
        found = [child for child in looks if child is not None and child.parent == pid]
        self._children[pid] = [child.pid for child in found]
        return found

    def _listed(self, pid: int, thread: str) -> list[int]:
        """The children that a thread has started (/proc/PID/task/TID/children)."""
        try:
            return [int(one) for one in read(f"{self._proc}/{pid}/task/{thread}/children").split() if one.isdigit()]
        except OSError:  # it is over
            return []

    def _look_further(self, ranks: Collection[int], now: float) -> None:
        """What may cost too much for each tick, a part at a time.

        That is the ranks' other threads, as any may start workers, and now and then those of the processes below; or all
        processes of the machine.
        """
        if not self._unasked and ranks:
            is_due = now >= self._due
            if is_due:
                self._due, self._more = now + LATER_SECONDS, {}
            if self._lists:
                self._unasked = self._threads(dict.fromkeys((*ranks, *(self._children if is_due else ()))))
            elif is_due:
                self._unasked = [(int(pid), "") for pid in _names(self._proc)]
        part, self._unasked = self._unasked[:AT_ONCE], self._unasked[AT_ONCE:]
        for pid, thread in part:
            self._ask(pid, thread)

    def _threads(self, pids: Iterable[int]) -> list[tuple[int, str]]:
        """All of some processes but the main ones; those that have started somebody and are over are forgotten."""
        threads = {pid: _names(f"{self._proc}/{pid}/task") for pid in pids}
        known = {pid: starters for pid, starters in self._starters.items() if pid in self._children}
        self._starters = {pid: starters.intersection(threads.get(pid, starters)) for pid, starters in known.items()}
        return [(pid, name) for pid, names in threads.items() for name in names if name != str(pid)]

    def _ask(self, pid: int, thread: str) -> None:
        """Learn whether a thread has children, or who is the parent of a process."""
        if thread:
            if self._listed(pid, thread):
                self._starters.setdefault(pid, set()).add(thread)
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
