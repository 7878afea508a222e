"""Train on real data loaders of known delay, without workers and with two, and print their own measurements as JSON.

The JSON has, for each run by name: the seconds of waiting for the first batches of the epochs, and for the others; and
the least possible wait, from the moments at which the batches were ready.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import torch
from torch.utils.data import DataLoader, Dataset

import trackside

if TYPE_CHECKING:
    from collections.abc import Iterator

DELAY, BATCHES, EPOCHS = 0.1, 11, 2  # seconds: long beside what a loaded machine adds to a wait


class Slow(Dataset[torch.Tensor]):  # type: ignore[misc]  # torch may be missing where types are checked
    """A dataset of the moments at which a sample was begun and ready, by a clock that all processes share."""

    def __len__(self) -> int:
        return BATCHES

    def __getitem__(self, _: int) -> torch.Tensor:
        began = time.monotonic()
        time.sleep(DELAY)
        return torch.tensor([began, time.monotonic()], dtype=torch.float64)


class Clocked:
    """A loader that measures the time of each of its epochs and batches.

    Attributes:
        took: Seconds by epoch and batch; the start of an epoch counts for its first batch.
        least: Seconds from the moment at which a batch was requested, or begun, until it was ready.
    """

    def __init__(self, workers: int) -> None:
        self.took: list[list[float]] = []
        self.least: list[list[float]] = []
        self._loader = DataLoader(Slow(), batch_size=1, num_workers=workers)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.took.append([])
        self.least.append([])
        asked = time.monotonic()
        return self._clocked(asked, iter(self._loader), time.monotonic() - asked)

    def _clocked(self, asked: float, batches: Iterator[torch.Tensor], start: float) -> Iterator[torch.Tensor]:
        for _ in range(len(self)):
            since = time.monotonic()
            batch = next(batches)
            self.took[-1].append(time.monotonic() - since + start)
            began, ready = batch[0].tolist()
            self.least[-1].append(max(0.0, ready - (max(began, since) if len(self.took[-1]) > 1 else asked)))
            yield batch
            start = 0.0


def main() -> None:
    """Train a run with each loader."""
    seen = {}
    for workers in (0, 2):
        loader = Clocked(workers)
        with trackside.init(f"workers-{workers}") as run:
            began = time.monotonic()
            for _ in range(EPOCHS):
                for _batch in run.data(loader):
                    run.push(loss=1.0)
            epochs = time.monotonic() - began
        seen[run.name] = {
            "first": sum(epoch[0] for epoch in loader.took),
            "others": sum(sum(epoch[1:]) for epoch in loader.took),
            "epochs": epochs,
            "least": sum(sum(epoch[1:]) for epoch in loader.least),
        }
    print(json.dumps(seen))  # noqa: T201  what the test reads


if __name__ == "__main__":
    main()
