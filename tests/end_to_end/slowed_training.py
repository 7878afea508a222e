"""A training that something slows down: ``python slowed_training.py PACE KIND [FILE]``.

A step sleeps for as many seconds as the file PACE states, and besides, by its kind, computes, or reads a page of FILE: in the
step itself, or in the worker of a data loader. The environment pins it to one CPU on request.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import trackside

if TYPE_CHECKING:
    from collections.abc import Iterable

PAGE = 4096
PAGES = 1 << 20
LOOPS = 200_000  # of a step that computes: some 10 ms


class Pages:
    """Dataset of pages of a file in random order, each read without readahead."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor = -1

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> int:
        if self._descriptor < 0:
            self._descriptor = os.open(self._path, os.O_RDONLY)
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        return len(os.pread(self._descriptor, PAGE, PAGE * Random(index).randrange(PAGES)))


def compute() -> int:
    """Keep a CPU busy."""
    total = 0
    for number in range(LOOPS):
        total += number
    return total


def main() -> None:
    """Train until the process is killed."""
    pace, kind, *path = sys.argv[1:]
    if kind == "compute":
        os.sched_setaffinity(0, {int(os.environ["CPU"])})
    run = trackside.init()
    data: Iterable[int] = range(1_000_000)
    pages = Pages(path[0]) if path else None
    if kind == "load":
        from torch.utils.data import DataLoader

        data = run.data(DataLoader(pages, batch_size=None, num_workers=1, prefetch_factor=2))
    for step, _ in enumerate(data):
        if kind == "compute":
            compute()
        elif kind == "read" and pages is not None:
            pages[step]
        time.sleep(float(Path(pace).read_text()))
        run.push(step=step, loss=1 / (1 + step))


if __name__ == "__main__":
    main()
