"""A rank of real processes whose workers end as a test demands, with a clock that the test sets."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collectors.trees import member
from processes import DEADLINE, clean_environ

from trackside_daemon.collectors.process.process_tree import Stat, read_stat
from trackside_daemon.collectors.process.rank_usage import SeriesLabels
from trackside_daemon.collectors.process.worker_deaths import CAUSES, WorkerDeaths
from trackside_daemon.linux.oom import OomKills

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trackside_daemon.collectors.process.shm import ShmUse
    from trackside_daemon.model.records import Event

MIB = 1024**2
PROC = Path("/proc")
WALL = 1_760_000_000.0
SCRIPT = """
import os, signal, sys
for number in (signal.SIGHUP, signal.SIGQUIT):  # whoever runs the tests may ignore them
    signal.signal(number, signal.SIG_DFL)
gates = []
def worker(end):
    reads, writes = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(writes)
        os.read(reads, 1)
        exec(end)
        os._exit(0)
    gates.append(writes)
    print(pid, flush=True)
def go(reap=True):
    for gate in gates:
        os.close(gate)
    for _ in gates:
        os.wait() if reap else os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
    gates.clear()
    print(flush=True)
for line in sys.stdin:
    exec(line)
"""


NONE = dict.fromkeys(CAUSES, 0)
LABELS = SeriesLabels("char-model", "3")


class Cgroups:
    """Two jobs' cgroups, as files."""

    def __init__(self, place: Path) -> None:
        self.proc, self._cgroups = place / "proc", place / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        mount = f"30 23 0:26 / {self._cgroups} rw shared:4 - cgroup2 cgroup2 rw\n"
        (self.proc / "self" / "mountinfo").write_text(mount)
        for name in ("job", "other"):
            (self._cgroups / name).mkdir(parents=True)
            self.kills(name, 3)
        self.machine(3)

    def kills(self, name: str, count: int) -> None:
        (self._cgroups / name / "memory.events").write_text(f"oom {count}\noom_kill {count}\n")

    def machine(self, count: int) -> None:
        (self.proc / "vmstat").write_text(f"nr_free_pages 1\noom_kill {count}\npgfault 2\n")

    def enter(self, pid: int) -> None:
        """Put a process into the job's cgroup."""
        (self.proc / str(pid)).mkdir()
        (self.proc / str(pid) / "cgroup").write_text("0::/job\n")


class Training:
    """A rank whose workers end on demand, and the events and counts of their deaths.

    Args:
        place: The directory for the files of its cgroup.
        launcher: A command that starts it.

    Attributes:
        now: The time of the clock.
        most: The highest use of /dev/shm.
    """

    def __init__(self, place: Path, launcher: Sequence[str] = ()) -> None:
        self.process = subprocess.Popen(
            [*launcher, sys.executable, "-c", SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=clean_environ(),
        )
        self.cgroups = Cgroups(place)
        self.deaths = WorkerDeaths(PROC, OomKills(self.cgroups.proc))
        self.member = member(self.process.pid, 3, attempt=2)
        self.now = 100.0
        self.most: dict[int, ShmUse] = {}
        self._descriptors = descriptors()

    def do(self, line: str) -> str:
        """Have the rank do something that prints a line."""
        self.send(line)
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def worker(self, end: str) -> int:
        """Start a worker, follow it, and return its pid; it ends in the given way when the rank continues."""
        pid = int(self.do(f"worker({end!r})"))
        self.cgroups.enter(pid)
        self.follow(pid, self.process.pid)
        return pid

    def follow(self, pid: int, rank: int) -> None:
        for _ in range(2):
            self.deaths.follow([process(pid)], process(rank), self.member, self.now)
        assert self.reports_after(1.0) == []

    def reports_after(self, after: float = 0.0) -> list[Event]:
        """Return the events *after* so many more seconds."""
        self.now += after
        self.deaths.update(self.now, WALL, self.most)
        return list(self.deaths.reports())

    def counts(self) -> dict[str, Any]:
        """Return the deaths on the page, by cause."""
        found = list(self.deaths.samples({LABELS}, self.now))
        assert {one.labels[:2] for one in found} <= {LABELS}
        return {one.labels[2]: one.value for one in found}

    def followed(self) -> int:
        """Return the number of followed workers."""
        return len(self.deaths._workers)

    def left_open(self) -> int:
        """Return the number of pidfds opened and not closed since the beginning."""
        return descriptors() - self._descriptors

    def forget(self) -> None:
        """Start anew without any followed process."""
        self.deaths.close()
        self.deaths = WorkerDeaths(PROC, OomKills(self.cgroups.proc))

    def close(self) -> None:
        self.deaths.close()
        assert self.left_open() == 0
        self.process.kill()
        self.process.wait(DEADLINE)
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


def process(pid: int) -> Stat:
    found = read_stat("/proc", pid)
    assert found is not None
    return found


def await_end(*pids: int) -> None:
    """Wait until these processes have ended; any process may reap them."""
    for pid in pids:
        with suppress(ProcessLookupError):
            pidfd = os.pidfd_open(pid)
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            assert poll.poll(DEADLINE * 1000)
            os.close(pidfd)


def kill(name: str) -> str:
    return f"os.kill(os.getpid(), signal.{name})"


def children(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def descriptors() -> int:
    """Return the number of open pidfds of this process."""
    links = []
    for one in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that reads the directory
            links.append(str(one.readlink()))
    return sum("pidfd" in link for link in links)
