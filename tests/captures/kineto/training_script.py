"""Train without end, as `test_pytorch.py` commands it: ``profile`` and ``stop`` on standard input, its end ends this."""

from __future__ import annotations

import atexit
import sys
import threading
import time

import torch

from trackside.captures.kineto import cancel_recording

atexit.register(cancel_recording)  # as the client does at its end
torch.set_num_threads(1)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters())
commands: list[str] = []


def read() -> None:
    for line in sys.stdin:
        commands[:] = [line.strip()]
    commands[:] = ["end"]


def step() -> None:
    optimizer.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    time.sleep(0.005)


threading.Thread(target=read, daemon=True).start()
sys.stdout.write("ready\n")
sys.stdout.flush()
while "end" not in commands:
    step()
    if commands == ["profile"]:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
            while commands == ["profile"]:
                step()
