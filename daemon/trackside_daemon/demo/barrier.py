"""Where simulated ranks wait for each other."""

from __future__ import annotations

import time
from mmap import mmap
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trackside_daemon.demo.stop_signal import Stop

LOOK_SECONDS = 0.005


class Barrier:
    """A file in which each rank counts how often it has come, which the others map and look at.

    Who has died never comes, and is waited for, as in a collective of NCCL.

    Args:
        file: The ranks' own; the first makes it.
        rank: This one's number.
        ranks: How many there are.
    """

    def __init__(self, file: str, rank: int, ranks: int) -> None:
        with Path(file).open("a+b") as opened:
            opened.truncate(8 * ranks)  # also for whoever comes later, whose counts stay
            self._counts = memoryview(mmap(opened.fileno(), 8 * ranks)).cast("q")
        self._rank = rank
        self._count = 0

    def wait(self, stop: Stop) -> bool:
        """Come, and wait until all have come as often; False when stopped before."""
        self._count += 1
        self._counts[self._rank] = self._count
        while min(self._counts) < self._count:
            if stop.is_set():
                return False
            time.sleep(LOOK_SECONDS)
        return True
