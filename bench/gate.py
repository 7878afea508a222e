"""Measure how often `trackside compare --fail-if` is right: real trainings of the same code, and of code that is 5 % slower.

Usage: PYTHONPATH=tests:. python bench/gate.py [ROUNDS] [STEPS...]
"""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import processes
from processes import Daemon, clean_environ, command

from bench import table

ROUNDS = 20
STEPS = (100, 300, 1000)
LAYERS = 160  # a step of about 5 ms; 5 % more are exactly 8 more
CONDITIONS = ("step_time > 1.025 * baseline", "ratio_low(step_time) > 1")
TRAINING = """
import sys
import numpy as np
import trackside
steps, layers = map(int, sys.argv[1:])
chance = np.random.default_rng(1)
weights = [chance.standard_normal((256, 256), np.float32) / 16 for _ in range(4)]
batch = chance.standard_normal((16, 256), np.float32)
for step in range(steps):
    hidden = batch
    for layer in range(layers):
        hidden = np.tanh(hidden @ weights[layer % 4])
    trackside.push(step=step, loss=float(np.square(hidden - 1).mean()))
trackside.finish()
"""


def main() -> None:
    """Print a row for each number of steps."""
    rounds, *steps = map(int, sys.argv[1:]) if sys.argv[1:] else (ROUNDS, *STEPS)
    table.machine()
    counts = (f"`{condition}` fails: {kind}" for condition in CONDITIONS for kind in ("same code", "5 % slower"))
    table.head(
        f"steps of a run ({rounds} rounds)", "ms per step", *counts, "ratio of the same code, 5th to 95th percentile"
    )
    with tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp") as place:
        daemon = Daemon(Path(place), fresh=True)
        try:
            for each in steps or STEPS:
                measure(daemon, rounds, each)
        finally:
            daemon.stop()


def measure(daemon: Daemon, rounds: int, steps: int) -> None:
    """Train and compare, the three trainings of a round in random order."""
    failed = dict.fromkeys([(condition, kind) for condition in CONDITIONS for kind in ("same", "slow")], 0)
    ratios, seconds = [], []
    for number in range(rounds):
        layers = {"base": LAYERS, "same": LAYERS, "slow": LAYERS * 105 // 100}
        kinds = list(layers)
        random.shuffle(kinds)
        for kind in kinds:
            train(daemon, f"{kind}-{steps}-{number}", steps, layers[kind])
        for kind in ("same", "slow"):
            names = [f"{one}-{steps}-{number}" for one in ("base", kind)]
            for condition in CONDITIONS:
                history = f"--storage.path={daemon.history}"
                ended = processes.run(command("compare", *names, "--format=csv", f"--fail-if={condition}", history))
                assert ended.returncode in {0, 3}, ended.stderr
                failed[condition, kind] += ended.returncode == 3
            header, *rows = ended.stdout.splitlines()
            values = dict(zip(header.split(","), rows[1].split(","), strict=True))
            ratios += [float(values["step_time.ratio"])] if kind == "same" else []
            seconds.append(float(values["step_time"]))
    ratios.sort()
    ends = ratios[len(ratios) // 20], ratios[-1 - len(ratios) // 20]
    counts = [f"{failed[condition, kind]}" for condition in CONDITIONS for kind in ("same", "slow")]
    table.row(f"{steps:,}", f"{1e3 * statistics.median(seconds):.1f}", *counts, f"{ends[0]:.3f} to {ends[1]:.3f}")


def train(daemon: Daemon, name: str, steps: int, layers: int) -> None:
    """Run one training to its end."""
    more = {"TRACKSIDE_RUN_NAME": name, "TRACKSIDE_ENDPOINT": daemon.endpoint, "OPENBLAS_NUM_THREADS": "1"}
    arguments = [sys.executable, "-c", TRAINING, str(steps), str(layers)]
    subprocess.run(arguments, env=clean_environ(more), check=True)


if __name__ == "__main__":
    main()
