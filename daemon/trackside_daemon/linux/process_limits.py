"""Limits of a worker process for work that may take long."""

from __future__ import annotations

import contextlib
import os
import resource
import sys

import psutil


def limit_this_process(memory_bytes: int, cpu_seconds: int) -> None:
    """Limit this process (setrlimit(2)), and let it use processors and disks only when nothing else does (nice(2), ioprio_set(2)).

    Args:
        memory_bytes: Most bytes of its address space.
        cpu_seconds: Most seconds of processor time; the kernel then ends it.
    """
    for name, most in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_CORE, 0),
    ):
        with contextlib.suppress(OSError, ValueError):  # a lower limit stays
            resource.setrlimit(name, (most, most))
    os.nice(19)
    if sys.platform == "linux":
        psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)
