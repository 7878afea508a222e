"""Find the cgroup of a process, and its container and Slurm job from the cgroup's path."""

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from trackside_daemon.collectors.kernel_files import read
from trackside_daemon.collectors.process.process_tree import ProcessKey
from trackside_daemon.linux.cgroups import label

AGAIN_SECONDS = 30.0  # time until a location is read again: a process can be moved to another cgroup, but seldom is

# /docker/ID, docker-ID.scope, cri-containerd-ID.scope, crio-ID.scope, libpod-ID.scope
_CONTAINER = re.compile(rb"[/:-]([0-9a-f]{12})[0-9a-f]{52}(?:\.scope)?(?=/|$)", re.MULTILINE)

# /slurm/uid_1000/job_7/step_0, slurmstepd.scope/job_7/step_0; from Slurm 26.05 on, a SLUID instead of the number
_JOB = re.compile(rb"slurm[^/\n]*/(?:uid_\d+/)?(?:job_(\d+)|(s[0-9A-HJKMNP-TV-Z]{13}))(?=/|$)", re.MULTILINE)


class ContainerLocation(NamedTuple):
    """The cgroup, container and job of a process.

    Attributes:
        cgroup: Label value of its cgroup, from `trackside_daemon.linux.cgroups.label`.
        container: First 12 digits of its container's id, as ``docker ps`` shows it; of nested ones the innermost.
        job: The number of its Slurm job, or the job's SLUID.
    """

    cgroup: str = ""
    container: str = ""
    job: str = ""


class ContainerLocations:
    """Locations of processes, each kept until a tick in which nothing asks for it.

    Args:
        proc: Path of procfs.
        clock: Seconds of the monotonic clock.
    """

    def __init__(self, proc: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._proc = proc
        self._clock = clock
        self._before: dict[ProcessKey, tuple[float, ContainerLocation]] = {}
        self._now: dict[ProcessKey, tuple[float, ContainerLocation]] = {}

    def begin(self) -> None:
        """Begin a tick, and forget processes that the last tick did not ask for."""
        self._before = self._now
        self._now = {}

    def of(self, key: ProcessKey) -> ContainerLocation:
        """Return the location of a process, at most `AGAIN_SECONDS` old; an empty one when it is gone or hidden."""
        cached = self._now.get(key) or self._before.get(key)
        if cached is None or self._clock() - cached[0] >= AGAIN_SECONDS:
            cached = self._clock(), self._read(key.pid)
        self._now[key] = cached
        return cached[1]

    def _read(self, pid: int) -> ContainerLocation:
        try:
            text = read(self._proc / str(pid) / "cgroup")
        except OSError:
            return ContainerLocation()
        containers = _CONTAINER.findall(text)
        container = containers[-1].decode() if containers else ""
        return ContainerLocation(label(text.decode(errors="replace")), container, slurm_job(text).decode())


def slurm_job(text: bytes) -> bytes:
    """Return the Slurm job in the text of a /proc/PID/cgroup; empty for none."""
    match = _JOB.search(text)
    return b"" if match is None else match[1] or match[2]
