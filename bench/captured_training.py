"""Train as the captures' benchmark commands.

python bench/captured_training.py paired 10000        pairs of steps of 1 ms with the profiler's hook and without; print JSON
python bench/captured_training.py steps FILE          train until standard input ends, and write when each step began and ended
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch.optim import optimizer as optimizers

import trackside
from bench.cost import precise
from bench.pairs import Pairs, now
from trackside.captures.kineto import count_cheaply

WARM_UP = 400
IDLE_SECONDS = 20.0


class Training:
    """A model with some hundred operators a step, of about 1 ms or of *size* times as long."""

    def __init__(self, layers: int) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.model: torch.nn.Module = torch.nn.Sequential(
            *(part for _ in range(layers) for part in (torch.nn.Linear(128, 128), torch.nn.ReLU()))
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        self._batch = torch.ones(64, 128)

    def step(self) -> torch.Tensor:
        """Make a step, and return the loss."""
        loss: torch.Tensor = self.model(self._batch).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


def paired(pairs: int) -> None:
    """Print the figures of pairs, and the CPU of the thread that asks while the training sleeps, as a share of a core."""
    training = Training(10)
    assert count_cheaply()  # as the client does within a second
    hooks: Any = optimizers._global_optimizer_post_hooks
    kept = dict(hooks)
    plan = Pairs(pairs, WARM_UP)
    measured = []
    for tested in plan.arms:
        hooks.clear()
        hooks.update(kept if tested else {})
        wall, cpu = now()
        training.step()
        later, more = now()
        measured.append((later - wall, more - cpu))
    before = precise(os.getpid())
    time.sleep(IDLE_SECONDS)
    asks = (precise(os.getpid()) - before) / IDLE_SECONDS
    figures = plan.figures(measured, [0.0] * len(measured))
    print(json.dumps({**figures, "hooks": len(kept), "asks": asks}))


def steps(path: Path) -> None:
    """Write the times of all steps, in Unix seconds."""
    ended = threading.Event()

    def read() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=read, daemon=True).start()
    training, times = Training(12), []
    run = trackside.init("steps")
    while not ended.is_set():
        begun = time.time()
        loss = training.step()
        times.append((begun, time.time()))
        run.push(step=len(times), loss=loss)
    path.write_text(json.dumps(times))


if __name__ == "__main__":
    if sys.argv[1] == "paired":
        paired(int(sys.argv[2]))
    else:
        steps(Path(sys.argv[2]))
