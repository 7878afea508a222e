"""Let a worker process take only what nothing else needs."""

from __future__ import annotations

import contextlib
import os
import resource
import sys

import psutil


def run_in_background(memory_bytes: int, cpu_seconds: int | None = None) -> None:
    """Limit this process's memory (RLIMIT_AS) and CPU time, and give it the least priority of processors and disks.

    On Linux its disk accesses wait for those of all others (ioprio_set(2), IOPRIO_CLASS_IDLE).
    """
    limits = {resource.RLIMIT_AS: memory_bytes, resource.RLIMIT_CPU: cpu_seconds, resource.RLIMIT_CORE: 0}
    for name, most in limits.items():
        if most is not None:
            with contextlib.suppress(OSError, ValueError):  # a lower limit stays
                resource.setrlimit(name, (most, most))
    os.nice(19)
    if sys.platform == "linux":
        psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)
