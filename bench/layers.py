"""Measure what distributions of layers cost a training on the CPU, beside other trackers; print a table.

    python bench/layers.py 10 20                  steps of about 10 ms, 20 pairs of windows of each way

A pair is two windows of as many steps, in random order: one with four measurements, and one with all hooks removed. The window
with measurements ends with steps without hooks, in which the sender thread and other processes have done the rest. *A
measurement* is a fourth of how much longer it takes in wall time, as a median with its 95 % interval. *Share* is what that is of
the steps from one measurement to the next: those that trackside chooses itself for such steps, and the default of W&B. Between
measurements, trackside runs the hook of `run.watch` and nothing else, and wandb its hooks of all parameters: both are not counted.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

import trackside
from bench import watch
from bench.daemons import fresh_daemon
from bench.hooks import Switch
from bench.pairs import bootstrapped
from bench.table import head, interval, machine, row
from bench.watch import Training

if TYPE_CHECKING:
    from collections.abc import Callable

EVERY, MEASURED = 12, 4
HOOKED, PLAIN = EVERY * MEASURED, 24  # steps of a window with hooks, and after them
WARM_UP = 2  # pairs
WANDB_EVERY = 1000  # the default of log_freq; TensorBoard has none, and gets the same


class Way(NamedTuple):
    """A way to track the distributions of a model.

    Attributes:
        push: Called after each step with its number and loss.
        every: Returns the steps from one measurement to the next.
        stop: Ends it.
    """

    push: Callable[[int, torch.Tensor], object] = lambda *_: None
    every: Callable[[], int] = lambda: WANDB_EVERY
    stop: Callable[[], object] = lambda: None


def main() -> None:
    """Measure the ways, and print the table."""
    milliseconds, pairs = float(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    vars(watch).update(LAYERS=6)
    machine()
    head("way", "pairs", "step, ms", "a measurement, ms", "each N steps", "share")
    with fresh_daemon() as daemon:
        os.environ["TRACKSIDE_ENDPOINT"] = daemon.endpoint
        try:
            for name, begin in WAYS.items():
                _row(name, *measured(Training(milliseconds), begin, pairs))
        except ImportError as error:
            print(f"not measured: {error}", file=sys.stderr)


def _row(name: str, longer: list[float], step: float, every: int) -> None:
    each = np.array(longer) / MEASURED
    share = interval(bootstrapped(each / every / step * 100), ".2f")
    cost = interval(bootstrapped(each * 1e3), ".1f", "")
    row(name, str(len(longer)), f"{step * 1e3:.1f}", cost, f"{every:,}", share)


def measured(training: Training, begin: Callable[[Training], Way], pairs: int) -> tuple[list[float], float, int]:
    """Return by how many seconds the first window of each pair is longer, the seconds of a step, and the chosen pace."""
    way = begin(training)
    switch, number = Switch(training.model, training.optimizer), EVERY - 1

    def steps(count: int, *, hooked: bool = False) -> None:
        nonlocal number
        for _ in range(count):
            number += hooked
            way.push(number if hooked else EVERY + 1, training.step())

    def window(*, hooked: bool) -> float:
        begun = perf_counter()
        if hooked:
            switch.on()
        steps(HOOKED, hooked=hooked)
        if hooked:
            switch.off()
        steps(PLAIN)
        return perf_counter() - begun

    for _ in range(EVERY - 1):  # so that the first step of a window is measured
        way.push(1, training.step())
    switch.off()
    chance, longer, plain = random.Random(4711), [], []
    for pair in range(pairs + WARM_UP):
        first = chance.random() < 0.5
        timed = {one: window(hooked=one) for one in (first, not first)}
        if pair >= WARM_UP:
            longer.append(timed[True] - timed[False])
            plain.append(timed[False] / (HOOKED + PLAIN))
    every = way.every()
    switch.on()
    way.stop()
    return longer, median(plain), every


def _trackside(**wanted: Any) -> Callable[[Training], Way]:
    def begin(training: Training) -> Way:
        run = trackside.init(name="bench")
        watcher = run.observe(training.model, training.optimizer, every=EVERY, **wanted)

        def pace() -> int:
            assert watcher._observer is not None
            return watcher._observer.budget.every

        return Way(lambda step, loss: run.push(step=step, loss=loss), pace, run.finish)

    return begin


def _wandb(training: Training) -> Way:
    import wandb

    run = wandb.init(mode="offline", dir=tempfile.mkdtemp(), settings=wandb.Settings(silent=True))
    run.watch(training.model, log="all", log_freq=EVERY)
    return Way(lambda _, loss: run.log({"loss": float(loss)}), stop=run.finish)


def _tensorboard(training: Training) -> Way:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(tempfile.mkdtemp())

    def push(step: int, loss: torch.Tensor) -> None:
        writer.add_scalar("loss", float(loss), step)
        if step % EVERY == 0:
            for name, one in training.model.named_parameters():
                writer.add_histogram(name, one, step)
                writer.add_histogram(f"{name}.grad", one.grad, step)

    return Way(push, stop=writer.close)


FORWARD: dict[str, Any] = {"activations": "*.linear2", "attention": "*.self_attn"}
WAYS: dict[str, Callable[[Training], Way]] = {
    "nothing": lambda _: Way(),
    "`run.observe`, weights and gradients": _trackside(),
    "`run.observe`, also activations and attention": _trackside(**FORWARD),
    'wandb, `watch(log="all")`': _wandb,
    "TensorBoard, `add_histogram` of weights and gradients": _tensorboard,
}

if __name__ == "__main__":
    main()
