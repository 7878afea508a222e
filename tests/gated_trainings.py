"""Small real trainings for the gate of `trackside compare`: their work per step and their learning rate are arguments."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import processes
from processes import clean_environ, command

if TYPE_CHECKING:
    import subprocess

    from processes import Daemon

LAYERS = 160  # a step of about 5 ms; 5 % more are exactly 8 more
SLOWER = LAYERS * 105 // 100
TRAINING = """
import sys
import numpy as np
import trackside
steps, layers, rate = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
chance = np.random.default_rng(1)
weights = [chance.standard_normal((256, 256), np.float32) / 16 for _ in range(4)]
batch = chance.standard_normal((16, 256), np.float32)
target = chance.standard_normal(16)
head = np.zeros(256)
for step in range(steps):
    hidden = batch
    for layer in range(layers):
        hidden = np.tanh(hidden @ weights[layer % 4])
    error = hidden @ head - target
    head -= rate * hidden.T @ error
    trackside.push(step=step, loss=float(np.square(error).mean()))
trackside.finish()
"""


def train(daemon: Daemon, name: str, steps: int, layers: int = LAYERS, rate: float = 0.01) -> None:
    """Train to the end, as a process of its own."""
    more = {"TRACKSIDE_RUN_NAME": name, "TRACKSIDE_ENDPOINT": daemon.endpoint, "OPENBLAS_NUM_THREADS": "1"}
    arguments = [sys.executable, "-c", TRAINING, str(steps), str(layers), str(rate)]
    processes.run(arguments, env=clean_environ(more), check=True)


def gate(daemon: Daemon, baseline: str, run: str, condition: str) -> subprocess.CompletedProcess[str]:
    """Return the comparison of a run with its baseline as CSV; its status is 3 if the condition holds."""
    arguments = ("compare", baseline, run, "--format=csv", f"--fail-if={condition}", f"--storage.path={daemon.history}")
    ended = processes.run(command(*arguments))
    assert ended.returncode in {0, 3}, ended.stderr
    return ended
