"""Limits of a worker process for work that may take long."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import time
from math import ceil

import psutil


def limit_this_process(memory_bytes: int, cpu_seconds: int | None = None, quick_seconds: float = 0.0) -> None:
    """Limit this process (setrlimit(2)), and let it use processors and disks only when nothing else does (nice(2), ioprio_set(2)).

    The main thread has to call this.

    Args:
        memory_bytes: Most bytes of its address space.
        cpu_seconds: Most seconds of processor time; the kernel then ends it. None leaves that to `limit_time`.
        quick_seconds: Seconds of processor time for which it keeps its priority (setitimer(2)), so that short work ends soon.
    """
    for name, most in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_CORE, 0),
    ):
        if most is not None:
            with contextlib.suppress(OSError, ValueError):  # a lower limit stays
                resource.setrlimit(name, (most, most))
    if quick_seconds:
        signal.signal(signal.SIGPROF, lambda *_: _lower_priority())
        signal.setitimer(signal.ITIMER_PROF, quick_seconds)
    else:
        _lower_priority()


def _lower_priority() -> None:
    os.nice(19)
    if sys.platform == "linux":
        psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)


def limit_time(seconds: int) -> None:
    """Limit the processor time of this process from now on; the kernel ends it after that (SIGXCPU)."""
    with contextlib.suppress(OSError, ValueError):  # a lower limit stays
        _, most = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (ceil(time.process_time()) + seconds, most))
