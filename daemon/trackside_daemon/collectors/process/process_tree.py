"""Find the descendants of ranks, of all depths, and their roles by their names.

Reads only files that need no lock on a process's memory, so a rank with page faults is never delayed.
"""

import logging
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

from trackside.log_once import LogOnce
from trackside_daemon.collectors.kernel_files import read


class ProcessKey(NamedTuple):
    """A pid and a start time in clock ticks since boot, which together identify a process."""

    pid: int
    started: int


class FirstNames:
    """First names of processes, each kept until a tick in which nothing asks for it."""

    def __init__(self) -> None:
        self._before: dict[ProcessKey, str] = {}
        self._now: dict[ProcessKey, str] = {}

    def begin(self) -> None:
        """Begin a tick, and forget processes that the last tick did not ask for."""
        self._before = self._now
        self._now = {}

    def first(self, key: ProcessKey, name: str) -> str:
        """Return the first name of a process, given its current *name*."""
        return self._now.setdefault(key, self._before.get(key, name))


# Interval of listing the children of all descendants' threads, or all processes on a kernel without such lists.
LATER_SECONDS = 10.0

AT_ONCE = 512  # most threads or processes that one walk reads, at 3 µs each; later walks read the others
DESCENDANTS = 4096  # most processes below all ranks

log = logging.getLogger("trackside")


class Stat(NamedTuple):
    """A process, from /proc/PID/stat."""

    pid: int  # the process id
    comm: str  # name of its main thread
    state: str  # state of its main thread: R, S, D, Z, T and others
    parent: int  # pid of its parent, which is another than the starter's once that has ended
    flags: int  # PF_… of the kernel's <linux/sched.h>
    major_faults: int  # major page faults of all threads, without children
    user: int  # clock ticks of all threads in user mode, without children
    system: int  # clock ticks of all threads in kernel mode, without children
    threads: int  # number of threads
    start: int  # clock ticks from boot to its start
    resident: int  # memory in RAM, in pages

    @property
    def key(self) -> ProcessKey:
        """The identity of the process."""
        return ProcessKey(self.pid, self.start)


def read_stat(proc: str, pid: int) -> Stat | None:
    """Read /proc/PID/stat; None when the process is gone or hidden."""
    try:
        data = read(f"{proc}/{pid}/stat")
        begin = data.index(b"(") + 1  # the name may contain spaces and parentheses
        end = data.rindex(b")")
        # The first of these is field 3 of proc_pid_stat(5).
        fields = data[end + 1 :].split(None, 22)
        return Stat(
            pid,
            data[begin:end].decode(errors="replace"),
            fields[0].decode(),
            int(fields[1]),
            int(fields[6]),
            int(fields[9]),
            int(fields[11]),
            int(fields[12]),
            int(fields[17]),
            int(fields[19]),
            int(fields[21]),
        )
    except (OSError, ValueError, IndexError):
        return None


class ProcessTree:
    """The trees of processes below ranks.

    Args:
        proc: Path of procfs; whether its ``thread-self/children`` exists decides how children are found.
        at_once: See `AT_ONCE`; *most* is `DESCENDANTS`.
    """

    def __init__(self, proc: Path, *, at_once: int = AT_ONCE, most: int = DESCENDANTS) -> None:
        self._proc, self._at_once, self._most = str(proc), at_once, most
        # Kernels without CONFIG_PROC_CHILDREN lack these files.
        self._has_children_files = (proc / "thread-self" / "children").exists()
        self._children: dict[int, list[int]] = {}
        self._before: dict[int, list[int]] = {}
        self._later: dict[int, set[int]] = {}
        self._starting_threads: dict[int, set[str]] = {}
        self._pending: list[tuple[int, str]] = []
        self._due = 0.0
        self._logged = LogOnce()

    def walk(self, ranks: Collection[int], now: float) -> dict[int, list[Stat]]:
        """Return, by pid, each living rank followed by its descendants, parents before children.

        A rank below another rank has its own tree.

        Args:
            ranks: Pids of the ranks.
            now: Seconds of the monotonic clock.
        """
        self._search_incrementally(ranks, now)
        self._before = self._children
        self._children = {}
        trees: dict[int, list[Stat]] = {}
        left = self._most
        for pid in ranks:
            if (rank := read_stat(self._proc, pid)) is not None:
                # One more than is left, so that a tree that exceeds the limit is noticed.
                trees[pid] = [rank, *islice(self._below(rank, ranks), left + 1)]
                left -= len(trees[pid]) - 1
                if left < 0:
                    trees[pid].pop()
                    left = 0
                    self._warn_limit()
        return trees

    def _below(self, rank: Stat, ranks: Collection[int]) -> Iterator[Stat]:
        """Yield the descendants of a rank."""
        waiting = self._children_of(rank.pid, ranks)
        while waiting:
            process = waiting.pop()
            # A process may appear below two parents, when the first one ends during the walk.
            if process.pid not in self._children:
                yield process
                waiting += self._children_of(process.pid, ranks)

    def _children_of(self, pid: int, ranks: Collection[int]) -> list[Stat]:
        """Return the children of a process that are not ranks, in descending order of pids."""
        threads = (str(pid), *self._starting_threads.get(pid, ())) if self._has_children_files else ()
        listed = [child for thread in threads for child in self._listed(pid, thread)]
        # The kernel's list may lack children while others end (proc_tid_children(5)), so the last tick's are checked
        # too.
        pids = {*listed, *self._before.get(pid, ()), *self._later.get(pid, ())}.difference(ranks)
        # In descending order, because `_below` removes the last one first.
        stats = (read_stat(self._proc, child) for child in sorted(pids, reverse=True))
        # A child counts only while its own stat names this parent: the pid may belong to another process by now.
        children = [child for child in stats if child is not None and child.parent == pid]
        self._children[pid] = [child.pid for child in children]
        return children

    def _listed(self, pid: int, thread: str) -> list[int]:
        """Return the children that a thread has started (/proc/PID/task/TID/children)."""
        try:
            words = read(f"{self._proc}/{pid}/task/{thread}/children").split()
            return [int(word) for word in words if word.isdigit()]
        except OSError:  # the thread has ended
            return []

    def _search_incrementally(self, ranks: Collection[int], now: float) -> None:
        """Search what is too expensive for one tick, `AT_ONCE` entries at a time.

        With children files: the ranks' other threads, any of which may start workers, and every `LATER_SECONDS` those of
        the descendants. Without: all processes of the machine, every `LATER_SECONDS`.
        """
        if not self._pending and ranks:
            is_due = now >= self._due
            if is_due:
                self._due = now + LATER_SECONDS
                self._later = {}
            if self._has_children_files:
                self._pending = self._threads(dict.fromkeys((*ranks, *(self._children if is_due else ()))))
            elif is_due:
                self._pending = [(int(pid), "") for pid in _numeric_names(self._proc)]
        part = self._pending[: self._at_once]
        self._pending = self._pending[self._at_once :]
        for pid, thread in part:
            self._search(pid, thread)

    def _threads(self, pids: Iterable[int]) -> list[tuple[int, str]]:
        """Return all threads of some processes except the main ones, and forget starting threads that have ended."""
        threads = {pid: _numeric_names(f"{self._proc}/{pid}/task") for pid in pids}
        self._starting_threads = {
            pid: starting.intersection(threads.get(pid, starting))
            for pid, starting in self._starting_threads.items()
            if pid in self._children
        }
        return [(pid, name) for pid, names in threads.items() for name in names if name != str(pid)]

    def _search(self, pid: int, thread: str) -> None:
        """Record whether a thread has children or, with an empty *thread*, the parent of a process."""
        if thread:
            if self._listed(pid, thread):
                self._starting_threads.setdefault(pid, set()).add(thread)
        elif (process := read_stat(self._proc, pid)) is not None:
            self._later.setdefault(process.parent, set()).add(pid)

    def _warn_limit(self) -> None:
        if self._logged.first():
            log.warning(
                "the ranks have more than %d processes below them; the rest is left out of all series and pages; does the "
                "training start processes without end?",
                self._most,
            )


def _numeric_names(directory: str) -> list[str]:
    """Return the numeric names in a directory; none when it is gone."""
    try:
        return [name for name in os.listdir(directory) if name.isdecimal()]  # noqa: PTH208  a thousand names at a time
    except OSError:
        return []


WORKER = "pt_data_worker"  # name that PyTorch 2.5 and later give to data loader workers, for every start method

Role = Literal["rank", "dataloader", "other"]


def role(comm: str, parent: str) -> Role:
    """Return the role of a process below a rank, by its name and its *parent*'s."""
    # A process that a worker starts has the worker's name until it calls exec; a forked one keeps it.
    return "dataloader" if comm == WORKER != parent else "other"


class ProcessRoles:
    """Roles over several ticks: a worker has the name in two ticks, and was never the child of a worker."""

    def __init__(self) -> None:
        self._named: set[ProcessKey] = set()
        self._named_before: set[ProcessKey] = set()
        self._children: set[ProcessKey] = set()
        self._children_before: set[ProcessKey] = set()

    def begin(self) -> None:
        """Begin a tick, and forget processes that the last tick did not see."""
        self._named_before = self._named
        self._named = set()
        self._children_before = self._children
        self._children = set()

    def of(self, below: Sequence[Stat]) -> list[Role | None]:
        """Return the roles of the processes below one rank, None for one that has the worker's name for the first time."""
        comms = {process.pid: process.comm for process in below}
        return [self._of(process, comms.get(process.parent, "")) for process in below]

    def _of(self, process: Stat, parent: str) -> Role | None:
        if parent == WORKER or process.key in self._children_before:  # also after another process became its parent
            self._children.add(process.key)
            return "other"
        if role(process.comm, parent) == "other":
            return "other"
        self._named.add(process.key)
        return "dataloader" if process.key in self._named_before else None
