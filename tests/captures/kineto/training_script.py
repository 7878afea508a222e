"""Train without end, as the tests command on standard input, whose end ends this.

Commands are ``healthy``, the names of what makes each step slow, and ``profile`` for a profiler of the training's own. Each is
repeated on standard output once a step obeys it.
"""

from __future__ import annotations

import atexit
import sys
import threading
import time
from typing import TYPE_CHECKING

import torch
from torch.utils.data import DataLoader, Dataset

from trackside.captures.kineto import cancel_recording, count_cheaply, optimizer_steps

if TYPE_CHECKING:
    from collections.abc import Callable

atexit.register(cancel_recording)  # as the client does
assert count_cheaply()
optimizer_steps(3600.0)  # as the daemon asks before a recording
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(128, 128) for _ in range(4)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
commands = ["healthy"]
obeyed = ["healthy"]
source, target = torch.ones(4_000_000), torch.zeros(4_000_000)


class Records(Dataset[torch.Tensor]):  # type: ignore[misc]  # where PyTorch is not installed
    """One batch a step."""

    def __len__(self) -> int:
        return 1_000_000_000

    def __getitem__(self, _index: int) -> torch.Tensor:
        if commands == ["data"]:
            read_slowly()
        return torch.ones(64, 128)


def read_slowly() -> None:
    time.sleep(0.1)


def augment() -> None:
    for _ in range(600_000):
        pass


def tiny() -> None:
    small = torch.ones(2)
    for _ in range(3000):
        small = small + 1


def copies() -> None:
    for _ in range(30):
        target.copy_(source)


PLANTED: dict[str, Callable[[], None]] = {"function": augment, "tiny": tiny, "copies": copies}


def read() -> None:
    for line in sys.stdin:
        commands[:] = [line.strip()]
    commands[:] = ["end"]


def step(batch: torch.Tensor) -> None:
    if obeyed != commands:
        obeyed[:] = commands
        sys.stdout.write(f"{obeyed[0]}\n")
        sys.stdout.flush()
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    PLANTED.get(commands[0], lambda: None)()
    optimizer.step()
    time.sleep(0.01)  # other tests run meanwhile


threading.Thread(target=read, daemon=True).start()
sys.stdout.write("ready\n")
sys.stdout.flush()
for batch in DataLoader(Records(), batch_size=None):
    if commands == ["end"]:
        break
    if commands == ["profile"]:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
            while commands == ["profile"]:
                step(batch)
    step(batch)
