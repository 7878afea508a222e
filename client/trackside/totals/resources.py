"""What a process can run out of and only it sees for sure: shared memory, also a container's own, and descriptors.

And what it has run out of, as an exception says: shared memory, or a GPU's.
"""

from __future__ import annotations

import os
import re
from math import inf
from pathlib import Path

from trackside.wire import ResourceUsage

SHM = "/dev/shm"  # noqa: S108  only looked at
FILES = "/proc/self/fd"

TELL_SECONDS = 10.0
GROWN = 0.1
"""Shared memory that has filled by so much of its size is told at once."""

_FULL = (("shared memory", "No space left on device"), ("DataLoader worker", "Bus error"))
_GPU = re.compile(
    r"out of memory\. Tried to allocate (?P<wanted>[\d.]+ \w+)\. (?:GPU (?P<gpu>\d+) has a total capaci?ty of "
    r"(?P<all>[\d.]+ \w+) of which (?P<free>[\d.]+ \w+) is free)?"
)
_TEXT = 65536


class ResourceMonitor:
    """Looks for one session, and knows what of it is news. Owned by the sender thread; nothing of it raises.

    Moments are nanoseconds of the monotonic clock.

    Args:
        shm: Where shared memory is.
        files: What lists the open descriptors.
    """

    def __init__(self, shm: str = SHM, files: str = FILES) -> None:
        self._shm, self._files = shm, Path(files)
        self._size = self._used = self._peak = 0
        self._told_at = self._listed_at = -inf
        self._told_used = 0
        self._listed: int | None = None

    def look(self) -> None:
        """See how full shared memory is (statvfs(3), 2 µs), for its peak."""
        try:
            found = os.statvfs(self._shm)
        except Exception:  # noqa: BLE001  there is none, and training goes on
            self._size = self._used = 0
            return
        self._size = found.f_blocks * found.f_frsize
        self._used = (found.f_blocks - found.f_bfree) * found.f_frsize
        self._peak = max(self._peak, self._used)

    def tell(self, now: int) -> ResourceUsage | None:
        """What is to be told at this moment; None while nothing is news, or there is nothing."""
        if now - self._told_at < TELL_SECONDS * 1e9 and not self._has_filled():
            return None
        room = self.seen(now)
        self._told_at, self._told_used, self._peak = now, self._used, self._used
        return room

    def seen(self, now: int) -> ResourceUsage | None:
        """What there is to tell at this moment, be it news or not; it counts as not told."""
        files = {"open_fds": self._open_files(now), "max_fds": _most_files()}
        room = ResourceUsage(self._size, self._used, self._peak, **files) if self._size else ResourceUsage(**files)
        return room if room != ResourceUsage() else None

    def forget(self) -> None:
        """Whoever is told next knows nothing of it."""
        self._told_at = -inf

    def _has_filled(self) -> bool:
        return self._size > 0 and self._peak - self._told_used >= GROWN * self._size

    def _open_files(self, now: int) -> int | None:
        """How many are open: the directory's size, from Linux 6.2 on; before that it is listed, each 10 s at most."""
        try:
            if count := self._files.stat().st_size:
                return count
            if now - self._listed_at >= TELL_SECONDS * 1e9:
                names = os.listdir(self._files)  # noqa: PTH208  a Path for each of very many would hold the others up
                self._listed_at, self._listed = now, len(names) - 1  # without the listing's own
        except Exception:  # noqa: BLE001  there is no /proc, or no descriptor left to list it with
            return None
        return self._listed


def shortage(error: BaseException | None, shm: str = SHM) -> str:
    """What an exception says that a full /dev/shm or GPU has caused, as PyTorch words it; empty for any other."""
    try:
        text = str(error)[:_TEXT]
        if found_gpu := _GPU.search(text):
            return _of_gpu(found_gpu)
        if not any(all(word in text for word in words) for words in _FULL):
            return ""
        found = os.statvfs(shm)
    except Exception:  # noqa: BLE001  the text of a user's exception is the user's code
        return ""
    return f"no room in {shm}, which has {found.f_blocks * found.f_frsize / 2**20:.4g} MiB"


def _of_gpu(found: re.Match[str]) -> str:
    wanted = f"no room for {found['wanted']} on "
    return (
        f"{wanted}GPU {found['gpu']}, of whose {found['all']} {found['free']} is free"
        if found["gpu"]
        else f"{wanted}a GPU"
    )


def _most_files() -> int | None:
    """The soft limit of open descriptors (RLIMIT_NOFILE); None where there is none."""
    try:
        import resource

        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    except Exception:  # noqa: BLE001  not every Python has the module
        return None
    return None if soft == resource.RLIM_INFINITY else soft
