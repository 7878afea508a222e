"""Where processes run: their cgroup, and what its path says of a container and of a job of Slurm."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.collectors.kernel_files import read
from trackside_daemon.linux.cgroups import label

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trackside_daemon.collectors.process.process_names import Life

AGAIN_SECONDS = 30.0
"""A process can be moved to another cgroup; few are."""

_CONTAINER = re.compile(rb"[/:-]([0-9a-f]{12})[0-9a-f]{52}(?:\.scope)?(?=/|$)", re.MULTILINE)
"""``/docker/ID``, ``docker-ID.scope``, ``cri-containerd-ID.scope``, ``crio-ID.scope``, ``libpod-ID.scope``."""

_JOB = re.compile(rb"slurm[^/\n]*/(?:uid_\d+/)?(?:job_(\d+)|(s[0-9A-HJKMNP-TV-Z]{13}))(?=/|$)", re.MULTILINE)
"""``/slurm/uid_1000/job_7/step_0``, ``slurmstepd.scope/job_7/step_0``; from Slurm 26.05 on a SLUID in its place."""


class Place(NamedTuple):
    """Where a process runs.

    Attributes:
        cgroup: As `trackside_daemon.linux.cgroups.label` has it.
        container: The first 12 digits of its container's id, as ``docker ps`` shows it; of nested ones the innermost.
        job: The number of its Slurm job, or the job's SLUID.
    """

    cgroup: str = ""
    container: str = ""
    job: str = ""


class Places:
    """Keeps each process's place, until the process is not asked about for a round.

    Args:
        proc: Where procfs is mounted.
        clock: Seconds of a clock that only goes forward.
    """

    def __init__(self, proc: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._proc = proc
        self._clock = clock
        self._before: dict[Life, tuple[float, Place]] = {}
        self._now: dict[Life, tuple[float, Place]] = {}

    def begin(self) -> None:
        """A round begins: whoever was not asked about in the last one is forgotten."""
        self._before, self._now = self._now, {}

    def of(self, life: Life) -> Place:
        """Where a process runs, as of `AGAIN_SECONDS` ago at most; nowhere when it is gone or hidden."""
        known = self._now.get(life) or self._before.get(life)
        if known is None or self._clock() - known[0] >= AGAIN_SECONDS:
            known = self._clock(), self._look(life.pid)
        self._now[life] = known
        return known[1]

    def _look(self, pid: int) -> Place:
        try:
            text = read(self._proc / str(pid) / "cgroup")
        except OSError:
            return Place()
        containers = _CONTAINER.findall(text)
        return Place(
            label(text.decode(errors="replace")), containers[-1].decode() if containers else "", job(text).decode()
        )


def job(text: bytes) -> bytes:
    """The Slurm job that a process of this /proc/PID/cgroup is in; empty when it is in none."""
    found = _JOB.search(text)
    return b"" if found is None else found[1] or found[2]
