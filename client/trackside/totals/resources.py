"""Measure what a process can run out of and only it sees reliably: a container's /dev/shm, and file descriptors."""

import os
from math import inf
from pathlib import Path

from trackside.environment.exit_status import SHM
from trackside.wire import ResourceUsage

REPORT_SECONDS = 10.0  # interval of reports
GROWN = 0.1  # growth of shared memory, as a share of its size, that is reported at once


class ResourceMonitor:
    """Measures for one session, and decides when to report. The sender thread owns it, and no method raises.

    Moments are nanoseconds of the monotonic clock.

    Args:
        shm: Mount point of shared memory.
        files: Directory that lists the open descriptors; empty for that of the process.
        pid: The process; 0 for this one.
    """

    def __init__(self, shm: str = SHM, files: str = "", pid: int = 0) -> None:
        self._shm = shm
        self._files = Path(files or f"/proc/{pid or 'self'}/fd")
        self._pid = pid
        self._size = 0
        self._used = 0
        self._peak = 0
        self._reported_at = -inf
        self._reported_used = 0
        self._listed_at = -inf
        self._listed: int | None = None

    def poll(self) -> None:
        """Measure shared memory (statvfs(3), 2 µs), for its peak."""
        try:
            status = os.statvfs(self._shm)
        except Exception:  # noqa: BLE001  there is none, and training goes on
            self._size = self._used = 0
            return
        self._size = status.f_blocks * status.f_frsize
        self._used = (status.f_blocks - status.f_bfree) * status.f_frsize
        self._peak = max(self._peak, self._used)

    def report(self, now: int) -> ResourceUsage | None:
        """Return the usage if a report is due; else, or if nothing can be measured, None."""
        if now - self._reported_at < REPORT_SECONDS * 1e9 and not self._has_grown():
            return None
        usage = self.usage(now)
        self._reported_at, self._reported_used, self._peak = now, self._used, self._used
        return usage

    def usage(self, now: int) -> ResourceUsage | None:
        """Return the usage without counting it as reported; None if nothing can be measured."""
        files = {"open_fds": self._open_files(now), "max_fds": _max_files(self._pid)}
        shm = (self._size, self._used, self._peak) if self._size else ()
        usage = ResourceUsage(*shm, **files)
        return usage if usage != ResourceUsage() else None

    def reset(self) -> None:
        """Make the next report due at once: another daemon may receive it."""
        self._reported_at = -inf

    def _has_grown(self) -> bool:
        return self._size > 0 and self._peak - self._reported_used >= GROWN * self._size

    def _open_files(self, now: int) -> int | None:
        # From Linux 6.2 on the directory's size is the count. Before that the directory is listed, at most each 10 s.
        try:
            if count := self._files.stat().st_size:
                return count
            if now - self._listed_at >= REPORT_SECONDS * 1e9:
                names = os.listdir(self._files)  # noqa: PTH208  a Path for each of very many would delay the others
                self._listed_at, self._listed = now, len(names) - 1  # without the listing's own
        except Exception:  # noqa: BLE001  there is no /proc, or no descriptor left to list it with
            return None
        return self._listed


def _max_files(pid: int) -> int | None:
    """Return the soft limit of open descriptors (RLIMIT_NOFILE) of a process, 0 for this one; None if there is none."""
    try:
        import resource

        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE) if pid else resource.getrlimit(resource.RLIMIT_NOFILE)
        soft = limits[0]
    except Exception:  # noqa: BLE001  not every Python has the module
        return None
    return None if soft == resource.RLIM_INFINITY else soft
