"""Measure what distributions of layers cost a training on the CPU, beside other trackers; print a table.

    python bench/layers.py 10 1500        steps of about 10 ms, 1,500 for each way

Each way measures every 16th step. What a measurement costs is how much longer that step and the three after it take, in which
its sender thread works, than the four steps before: the median of all, in CPU time of the process, so that other work on the
machine does not count. A share of the time follows from the pace: the one that trackside chooses itself for such a cost, and for
W&B its default.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from time import process_time
from typing import TYPE_CHECKING, Any

import torch

import trackside
from bench import watch
from bench.table import head, machine, row
from bench.watch import Training
from trackside.pytorch.observer import FORWARD_SHARE, SHARE
from trackside.pytorch.overhead_budget import OverheadBudget

if TYPE_CHECKING:
    from collections.abc import Callable

    Push = Callable[[int, torch.Tensor], object]

EVERY, AFTER = 16, 4
WARM_UP = 64
WANDB_EVERY = 1000  # the default of log_freq


def main() -> None:
    """Measure the ways."""
    milliseconds, steps = float(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    vars(watch).update(LAYERS=6, perf_counter=process_time)
    machine()
    head("way", "step, ms", "a measurement, ms", "each N steps", "share")
    for name, begin, share in WAYS:
        training = Training(milliseconds)
        try:
            push, pace = begin(training), share
        except ImportError as error:
            print(f"{name}: not measured, {error}", file=sys.stderr)
            continue
        cost, step = measured(training, push, steps)
        every = WANDB_EVERY if pace is None else _own_pace(pace, cost, step)
        row(name, f"{step * 1e3:.1f}", f"{cost * 1e3:.2f}", str(every), f"{cost / every / step:.2%}")


def measured(training: Training, push: Push, steps: int) -> tuple[float, float]:
    """Return the seconds of a measurement and of a step."""
    taken = []
    for number in range(1, steps + WARM_UP + 1):
        begun = process_time()
        push(number, training.step())
        taken.append(process_time() - begun)
    excess = [
        sum(taken[place : place + AFTER]) - sum(taken[place - AFTER : place])
        for place in range(EVERY - 1, len(taken) - AFTER, EVERY)
        if place > WARM_UP
    ]
    return statistics.median(excess), statistics.median(taken[WARM_UP:])


def _own_pace(share: float, cost: float, step: float) -> int:
    budget = OverheadBudget(share)
    budget.add_step(step)
    for _ in range(6):
        budget.add_cost(cost)
    return budget.every


def _trackside(**wanted: Any) -> Callable[[Training], Push]:
    def begin(training: Training) -> Push:
        run = trackside.init(name="bench")
        run.observe(training.model, training.optimizer, every=EVERY, **wanted)
        return lambda step, loss: run.push(step=step, loss=loss)

    return begin


def _wandb(training: Training) -> Push:
    import wandb

    run = wandb.init(mode="offline", dir=tempfile.mkdtemp(), settings=wandb.Settings(silent=True))
    run.watch(training.model, log="all", log_freq=EVERY)
    return lambda _, loss: run.log({"loss": float(loss)})


def _tensorboard(training: Training) -> Push:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(tempfile.mkdtemp())

    def push(step: int, loss: torch.Tensor) -> None:
        writer.add_scalar("loss", float(loss), step)
        if step % EVERY == 0:
            for name, one in training.model.named_parameters():
                writer.add_histogram(name, one, step)
                writer.add_histogram(f"{name}.grad", one.grad, step)

    return push


WAYS: tuple[tuple[str, Callable[[Training], Push], float | None], ...] = (
    ("nothing", lambda _: lambda *_: None, SHARE),
    ("trackside, weights and gradients", _trackside(), SHARE),
    (
        "trackside, also activations and attention",
        _trackside(activations="*.linear2", attention="*.self_attn"),
        SHARE + FORWARD_SHARE,
    ),
    ("wandb.watch(log='all')", _wandb, None),
    ("TensorBoard add_histogram", _tensorboard, None),
)

if __name__ == "__main__":
    main()
