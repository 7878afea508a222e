"""What memory a rank's process has to itself: to be asked seldom, since the kernel then stops the process's page faults."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from trackside_daemon.collectors.kernel_files import read
from trackside_daemon.collectors.process.process_tree import look
from trackside_daemon.model.metric import Metric, Sample

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from trackside_daemon.collectors.process.process_names import Life

SECONDS = 60.0

UNIQUE = Metric(
    "trackside_process_unique_memory_bytes",
    "gauge",
    "Memory in RAM that no other process shares with the rank's (USS), from /proc/PID/smaps_rollup; with "
    "collector.process.smaps.",
    ("pid",),
    "bytes",
)
PROPORTIONAL = Metric(
    "trackside_process_proportional_memory_bytes",
    "gauge",
    "Memory in RAM of the rank's process, of what is shared its part (PSS), from /proc/PID/smaps_rollup; with "
    "collector.process.smaps.",
    ("pid",),
    "bytes",
)


class Smaps:
    """Reads it in a thread of its own, one process after another.

    Args:
        proc: Where the kernel's process files are.
    """

    metrics = (UNIQUE, PROPORTIONAL)

    def __init__(self, proc: Path) -> None:
        self._proc = str(proc)
        self._due = 0.0
        self._thread: threading.Thread | None = None
        self._found: dict[Life, tuple[int, int]] = {}

    def samples(self, lives: Collection[Life], now: float) -> Iterator[Sample]:
        """What was read last, of those that live; *now* is in seconds of the monotonic clock."""
        found = self._found
        if lives and now >= self._due and not (self._thread and self._thread.is_alive()):
            self._due = now + SECONDS
            self._thread = threading.Thread(target=self._read, args=(tuple(lives),), name="smaps", daemon=True)
            self._thread.start()
        for life in lives:
            if life in found:
                unique, proportional = found[life]
                yield Sample(UNIQUE, (str(life.pid),), unique)
                yield Sample(PROPORTIONAL, (str(life.pid),), proportional)

    def wait(self) -> None:
        """Until what is being read has been."""
        if self._thread is not None:
            self._thread.join()

    def _read(self, lives: Collection[Life]) -> None:
        found = {}
        for life in lives:
            try:
                sizes = _sizes(read(f"{self._proc}/{life.pid}/smaps_rollup"))
            except (OSError, ValueError, IndexError):  # it is gone, is not ours to look into, or has no memory any more
                continue
            process = look(self._proc, life.pid)
            if process is not None and process.life == life:
                found[life] = sizes
        self._found = found


def _sizes(text: bytes) -> tuple[int, int]:
    """Unique and proportional bytes."""
    lines = (line.split() for line in text.splitlines()[1:])
    amounts = {fields[0]: int(fields[1]) * 1024 for fields in lines}
    unique = sum(amount for name, amount in amounts.items() if name.startswith(b"Private_"))
    return unique, amounts.get(b"Pss:", 0)
