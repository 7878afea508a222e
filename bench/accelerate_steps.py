"""Time steps of an Accelerate loop with and without a tracker, in pairs of random order; print JSON.

    python bench/accelerate_steps.py ipc:///tmp/push.sock 250     pairs of steps, and as many null pairs

Both arms log three numbers with `accelerator.log`, which does nothing without a tracker.

"""

from __future__ import annotations

import json
import sys

import torch
from accelerate import Accelerator

from bench.hooks import Calls, Switch, seen_seldom
from bench.pairs import Pairs, now
from bench.watch import Training
from trackside.integrations.accelerate import TracksideTracker

WARM_UP = 600


def main() -> None:
    """Measure what the command line names."""
    pairs = Pairs(int(sys.argv[2]), WARM_UP)
    print(json.dumps(pairs.figures(*timed(sys.argv[1], pairs.arms))))


def timed(endpoint: str, arms: list[bool]) -> tuple[list[tuple[float, float]], list[float]]:
    """Return per step: wall seconds, CPU seconds, and seconds in our calls."""
    calls = Calls()
    calls.time_watching()
    calls.time(TracksideTracker, "log")
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True, log_with=TracksideTracker(endpoint=endpoint))
    accelerator.init_trackers("steps")
    training = Training(10.0)
    training.model, training.optimizer = accelerator.prepare(training.model, training.optimizer)
    trackers, taken, spent = accelerator.trackers, [], []
    seen_seldom(accelerator.get_tracker("trackside", unwrap=True).watch(training.model, training.optimizer))
    switch = Switch(training.model, training.optimizer.optimizer)
    for step, tracks in enumerate(arms):
        accelerator.trackers = trackers if tracks else []
        switch.off()
        if tracks:  # both arms find in the caches what this touches
            switch.on()
        before, begun = calls.spent, now()
        loss = training.step(accelerator.backward)
        accelerator.log({"loss": loss, "grad_norm": 1.0, "learning_rate": 1e-3}, step=step)
        ended = now()
        taken.append((ended[0] - begun[0], ended[1] - begun[1]))
        spent.append(calls.spent - before)
        if not tracks:
            switch.on()
    accelerator.trackers = trackers
    accelerator.end_training()
    return taken, spent


if __name__ == "__main__":
    main()
