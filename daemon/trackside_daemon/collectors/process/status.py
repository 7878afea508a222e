"""Read name, user, parent and pid namespace of processes from /proc/PID/status."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trackside.environment.identity import start_time
from trackside_daemon.collectors.process.container_location import slurm_job

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

GENERATIONS = 16  # longest search for an ancestor, in processes


class Status(NamedTuple):
    """A process, from /proc/PID/status; *contained* when it has a pid namespace of its own."""

    comm: str
    parent: int
    uid: int
    contained: bool


class ProcessStatuses:
    """The processes at one moment; each is read once, on first use.

    Args:
        proc: Path of procfs.
    """

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._cache: dict[int, Status | None] = {}

    def get(self, pid: int) -> Status | None:
        """Return one process; None when it is gone, hidden, or on another machine."""
        if pid not in self._cache:
            self._cache[pid] = _read_status(self._proc / str(pid) / "status")
        return self._cache[pid]

    def started(self, pid: int) -> int:
        """Return the start of a process in ticks since boot; 0 when hidden."""
        return start_time(self._proc, pid)

    def nearest_ancestor(self, pid: int, among: Collection[int]) -> int:
        """Return the nearest of the pids *among* that is the process or its ancestor; 0 for none."""
        for _ in range(GENERATIONS):
            if pid in among:
                return pid
            status = self.get(pid)
            if status is None or not status.parent:
                break
            pid = status.parent
        return 0

    def sees_same_gpus(self, pid: int) -> bool:
        """Return whether the process is assumed to see the same GPUs as this one, in the same order.

        A process in its own container or Slurm job is not: those number their GPUs from 0.
        """
        status = self.get(pid)
        return status is not None and not status.contained and self._job(str(pid)) == self._job("self")

    def _job(self, pid: str) -> bytes:
        try:
            return slurm_job((self._proc / pid / "cgroup").read_bytes())
        except OSError:
            return b""


def _read_status(file: Path) -> Status | None:
    try:
        lines = file.read_bytes().decode(errors="replace").split("\n")
        fields = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
        # NSpid has the pid in each nested namespace, so a process in no other namespace has one.
        pids = fields.get("NSpid", "").split()  # missing before Linux 4.1
        return Status(fields["Name"], int(fields["PPid"]), int(fields["Uid"].split()[0]), len(pids) > 1)
    except (OSError, KeyError, ValueError, IndexError):
        return None
