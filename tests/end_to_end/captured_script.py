"""Train without end, as ranks of torchrun of which the last is slow, with PyTorch alone but for the two lines of a run."""

from __future__ import annotations

import os

import torch
from torch.nn.parallel import DistributedDataParallel

import trackside

SLOW = os.environ["RANK"] == "1"


def slow_transform(batch: torch.Tensor) -> torch.Tensor:
    for _ in range(1_500_000 if SLOW else 4_000):
        pass
    return batch * 2


def main() -> None:
    torch.distributed.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = 0
    while True:
        loss = model(slow_transform(torch.ones(8, 16))).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        trackside.push(step=step, loss=loss)


main()
