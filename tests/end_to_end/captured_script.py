"""Train without end, with PyTorch alone but for the two lines that open a run, as one process or as a rank of torchrun."""

from __future__ import annotations

import os
import time

import torch
from torch.nn.parallel import DistributedDataParallel

import trackside

STEP_SECONDS = 0.01


def slow_transform(batch: torch.Tensor) -> torch.Tensor:
    until = time.perf_counter() + STEP_SECONDS
    while time.perf_counter() < until:
        pass
    return batch * 2


def main() -> None:
    model: torch.nn.Module = torch.nn.Linear(16, 4)
    if "RANK" in os.environ:
        torch.distributed.init_process_group("gloo")
        model = DistributedDataParallel(model)
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
