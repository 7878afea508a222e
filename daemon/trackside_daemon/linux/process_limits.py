"""Limits of processes: those of a worker for work that may take long, and the open files of the daemon."""

import os
import resource
import signal
import sys
import time
from contextlib import suppress
from math import ceil
from pathlib import Path

from trackside_daemon.linux.cgroups import Cgroups

WORKER_BYTES = 512 << 20  # of a worker, if nothing else is configured
LEAST_BYTES = 128 << 20  # of a worker, of which its own code needs a third
SHARE = 4  # a worker gets the fourth part of what the cgroup allows

# A hard limit may allow thousands of millions, and some libraries iterate over all descriptor numbers.
MOST_FILES = 65_536  # upper bound of the limit that `raise_limit` sets


def worker_bytes(most: int, proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> int:
    """Return the memory of a worker in bytes: *most*, or a quarter of what the cgroup of this process allows.

    Source: memory.max of cgroup v2, memory.limit_in_bytes of v1, here and above. The kernel ends the whole service when a
    worker exceeds that.
    """
    own = Cgroups(proc, sys).of(os.getpid())
    limits = [most]
    for level in own.levels("memory") if own is not None else ():
        for name in ("memory.max", "memory.limit_in_bytes"):
            with suppress(OSError, ValueError):  # ValueError: max
                limits.append(max(LEAST_BYTES, int((level / name).read_text()) // SHARE))
    return min(limits)


def limit_memory(pid: int, most: int) -> None:
    """Limit the address space of a process in bytes (RLIMIT_AS, prlimit(2))."""
    if sys.platform == "linux":
        with suppress(OSError, ValueError):  # it has ended, or has a lower limit
            resource.prlimit(pid, resource.RLIMIT_AS, (most, most))


def allowed_memory() -> int:
    """Return the most bytes of this process's address space."""
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    return 1 << 62 if most == resource.RLIM_INFINITY else most


def limit_this_process(quick_seconds: float = 0.0) -> None:
    """Limit this process (setrlimit(2)), and let it use processors and disks only when nothing else does (nice(2), ioprio_set(2)).

    When memory is short, the kernel ends it before all others (oom_score_adj). The main thread has to call this.

    Args:
        quick_seconds: Seconds of processor time for which it keeps its priority (setitimer(2)), so that short work ends soon.
    """
    with suppress(OSError, ValueError):  # a lower limit stays
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):  # not Linux
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    if quick_seconds:
        signal.signal(signal.SIGPROF, lambda *_: _lower_priority())
        signal.setitimer(signal.ITIMER_PROF, quick_seconds)
    else:
        _lower_priority()


def _lower_priority() -> None:
    os.nice(19)
    if sys.platform == "linux":
        import psutil

        psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)


def limit_time(seconds: int) -> None:
    """Limit the processor time of this process from now on; the kernel ends it after that (SIGXCPU)."""
    with suppress(OSError, ValueError):  # a lower limit stays
        _, most = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (ceil(time.process_time()) + seconds, most))


def raise_limit() -> None:
    """Raise the soft limit (RLIMIT_NOFILE) to the hard one, but no higher than `MOST_FILES`; never lower it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(OSError, ValueError):  # some containers forbid the change
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
