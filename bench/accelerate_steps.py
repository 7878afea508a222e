"""Steps of 10 ms with `accelerator.log` and without, in pairs of random order one after the other; prints JSON.

python bench/accelerate_steps.py ipc:///tmp/push.sock 250     pairs of steps, and as many without it at all
"""

from __future__ import annotations

import json
import sys

import torch
from accelerate import Accelerator
from bench.pairs import Pairs, now
from bench.work import calibrated

from trackside.integrations.accelerate import TracksideTracker

WARM_UP = 40


def main() -> None:
    """Measure what the command line names."""
    pairs = Pairs(int(sys.argv[2]), WARM_UP)
    print(json.dumps(pairs.figures(timed(sys.argv[1], pairs.arms))))


def timed(endpoint: str, arms: list[bool]) -> list[tuple[float, float]]:
    """Seconds of each step, by the clock and of CPU time."""
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True, log_with=TracksideTracker(endpoint=endpoint))
    accelerator.init_trackers("steps")
    work, loss = calibrated(10.0, 8.0), torch.tensor(2.5)
    taken = []
    for step, logs in enumerate(arms):
        begun = now()
        work()
        if logs:
            accelerator.log({"loss": loss, "grad_norm": 1.0, "learning_rate": 1e-3}, step=step)
        ended = now()
        taken.append((ended[0] - begun[0], ended[1] - begun[1]))
    accelerator.end_training()
    return taken


if __name__ == "__main__":
    main()
