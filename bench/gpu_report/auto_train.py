"""Train on the GPU without a line of trackside, and print the step whose batch has a sample that spoils the loss.

    trackside run --auto -- python bench/gpu_report/auto_train.py --seconds 25 --device cuda

Each step reads its loss with ``item()``, for which the host waits.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn

BATCH, SPOILT_STEP = 32, 200
SPOILT = SPOILT_STEP * BATCH + 7
"""Number of the sample with an infinity."""


class Samples(torch.utils.data.Dataset):  # type: ignore[misc]
    """Endlessly many vectors [width], one of which has an infinity."""

    def __init__(self, width: int) -> None:
        self._width = width

    def __len__(self) -> int:
        return 100_000_000

    def __getitem__(self, number: int) -> torch.Tensor:
        sample = torch.full((self._width,), (number % 10) / 10)
        return sample / 0.0 if number == SPOILT else sample


def main() -> None:
    """Train with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=25.0)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    width = 2048 if options.device == "cuda" else 64
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(8))).to(options.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = torch.utils.data.DataLoader(Samples(width), BATCH, num_workers=1, pin_memory=options.device == "cuda")
    end = time.monotonic() + options.seconds
    for batch in loader:
        optimizer.zero_grad()
        loss = model(batch.to(options.device, non_blocking=True)).square().mean()
        loss.backward()
        optimizer.step()
        loss.item()
        if time.monotonic() > end:
            break


if __name__ == "__main__":
    main()
