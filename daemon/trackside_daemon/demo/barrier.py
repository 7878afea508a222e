"""Barrier between simulated ranks."""

from __future__ import annotations

import time
from mmap import mmap
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trackside_daemon.demo.stop_signal import StopRequest

POLL_SECONDS = 0.005


class Barrier:
    """A mapped file in which each rank counts its arrivals, and sees those of the others.

    A rank that has died never arrives, and the others wait for it, as in a collective of NCCL.

    Args:
        file: Path that all ranks share; the first rank makes the file.
        rank: This rank.
        ranks: Number of ranks.
    """

    def __init__(self, file: str, rank: int, ranks: int) -> None:
        with Path(file).open("a+b") as stream:
            stream.truncate(8 * ranks)  # keeps the counts of the ranks that came first
            self._counts = memoryview(mmap(stream.fileno(), 8 * ranks)).cast("q")
        self._rank = rank
        self._count = 0

    def wait(self, stop: StopRequest) -> bool:
        """Wait until all ranks have arrived as often as this one; return False if stopped before."""
        self._count += 1
        self._counts[self._rank] = self._count
        while min(self._counts) < self._count:
            if stop.is_set():
                return False
            time.sleep(POLL_SECONDS)
        return True
