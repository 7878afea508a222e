"""Read the unshared memory of rank processes from /proc/PID/smaps_rollup."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from trackside_daemon.collectors.kernel_files import read
from trackside_daemon.collectors.process.process_tree import read_stat
from trackside_daemon.model.families import process as process_families
from trackside_daemon.model.metric import Sample

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from trackside_daemon.collectors.process.process_names import ProcessKey

# The kernel stops the page faults of a process while something reads this file.
SECONDS = 60.0  # interval of reading


class Smaps:
    """The unshared memory of processes, read one after another in a separate thread.

    Args:
        proc: Path of procfs.
    """

    metrics = (process_families.UNIQUE_MEMORY, process_families.PROPORTIONAL_MEMORY)

    def __init__(self, proc: Path) -> None:
        self._proc = str(proc)
        self._due = 0.0
        self._thread: threading.Thread | None = None
        self._sizes: dict[ProcessKey, tuple[int, int]] = {}

    def samples(self, keys: Collection[ProcessKey], now: float) -> Iterator[Sample]:
        """Yield the last values of living processes; *now* is in seconds of the monotonic clock."""
        sizes = self._sizes
        if keys and now >= self._due and not (self._thread and self._thread.is_alive()):
            self._due = now + SECONDS
            # In a thread, because the kernel walks all page tables of a process for one read.
            self._thread = threading.Thread(target=self._read, args=(tuple(keys),), name="smaps", daemon=True)
            self._thread.start()
        for key in keys:
            if key in sizes:
                unique, proportional = sizes[key]
                yield Sample(process_families.UNIQUE_MEMORY, (str(key.pid),), unique)
                yield Sample(process_families.PROPORTIONAL_MEMORY, (str(key.pid),), proportional)

    def wait(self) -> None:
        """Wait until the thread has finished."""
        if self._thread is not None:
            self._thread.join()

    def _read(self, keys: Collection[ProcessKey]) -> None:
        by_key = {}
        for key in keys:
            try:
                sizes = _parse(read(f"{self._proc}/{key.pid}/smaps_rollup"))
            except (OSError, ValueError, IndexError):  # it is gone, may not be read by this user, or has no memory left
                continue
            # After the read, because the pid may have passed to another process before it.
            process = read_stat(self._proc, key.pid)
            if process is not None and process.key == key:
                by_key[key] = sizes
        self._sizes = by_key  # replaced as a whole, because `samples` runs in another thread without a lock


def _parse(text: bytes) -> tuple[int, int]:
    """Return unique and proportional bytes."""
    lines = (line.split() for line in text.splitlines()[1:])  # the first line is an address range
    amounts = {fields[0]: int(fields[1]) * 1024 for fields in lines}
    unique = sum(amount for name, amount in amounts.items() if name.startswith(b"Private_"))
    return unique, amounts.get(b"Pss:", 0)
