"""What the kernel tells of a process: its name, its user, its parent, and whether it counts as this one does."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trackside.environment.identity import start_time
from trackside_daemon.collectors.process.container_location import job

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

GENERATIONS = 16
"""So far up it is looked for the process that others descend from."""


class Status(NamedTuple):
    """A process, from /proc/PID/status; *contained* when it has a pid namespace of its own."""

    comm: str
    parent: int
    uid: int
    contained: bool


class Processes:
    """All processes at one moment: each is read when it is asked for, and once.

    Args:
        proc: Where procfs is mounted.
    """

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._known: dict[int, Status | None] = {}

    def get(self, pid: int) -> Status | None:
        """One process; None when it is gone, hidden, or of another machine."""
        if pid not in self._known:
            self._known[pid] = _status(self._proc / str(pid) / "status")
        return self._known[pid]

    def started(self, pid: int) -> int:
        """When it began, in ticks since boot, which tells it from another of its pid; 0 when hidden."""
        return start_time(self._proc, pid)

    def elder(self, pid: int, among: Collection[int]) -> int:
        """The nearest *among* these that the process is, or descends from; 0 for none."""
        for _ in range(GENERATIONS):
            if pid in among:
                return pid
            status = self.get(pid)
            if status is None or not status.parent:
                break
            pid = status.parent
        return 0

    def sees_the_same(self, pid: int) -> bool:
        """Whether the process may be taken to see all the GPUs that this one does, in the same order.

        It does not in a container, nor in a Slurm job, of its own: those begin to count their GPUs from 0.
        """
        status = self.get(pid)
        return status is not None and not status.contained and self._job(str(pid)) == self._job("self")

    def _job(self, pid: str) -> bytes:
        try:
            return job((self._proc / pid / "cgroup").read_bytes())
        except OSError:
            return b""


def _status(file: Path) -> Status | None:
    try:
        lines = file.read_bytes().decode(errors="replace").split("\n")
        fields = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
        pids = fields.get("NSpid", "").split()  # not there before Linux 4.1
        return Status(fields["Name"], int(fields["PPid"]), int(fields["Uid"].split()[0]), len(pids) > 1)
    except (OSError, KeyError, ValueError, IndexError):
        return None
