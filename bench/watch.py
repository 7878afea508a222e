"""What watching a model takes of a training's steps on a CPU: `run.watch`, and wandb.watch where it is installed.

    python bench/watch.py 10 40     steps of about 10 ms, 40 pairs of blocks with and without

Two figures of each way: the time in its hooks of the optimizer, taken by hooks around them, in percent of the steps, which
is precise but knows neither the model's own hooks nor what it does to caches; and the difference between blocks of steps with and without, in random order one
after the other, by their medians with a 95 % interval, which knows all and is as noisy as the machine is.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import tempfile
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from bench.steps import bootstrapped
from torch import nn

import trackside

if TYPE_CHECKING:
    from collections.abc import Callable

    Way = Callable[[nn.Module, torch.optim.Optimizer, "Hooks"], "Watched"]

WIDTH, LAYERS, LENGTH, WORDS = 128, 4, 64, 1000
BLOCK = 128
"""Steps of a block: as many as lie between two measurements of such a model at most, with steps of 10 ms."""


class Language(nn.Module):  # type: ignore[misc]
    """A small transformer over words."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        block = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(block, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: torch.Tensor) -> Any:
        """What may follow each word."""
        return self.head(self.blocks(self.words(words)))


class Training:
    """Steps that take about so many milliseconds."""

    def __init__(self, milliseconds: float) -> None:
        torch.manual_seed(4711)
        self.model = Language()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self._rows = 1
        while True:
            took = statistics.median(self._timed() for _ in range(15)) * 1000
            if took >= 0.9 * milliseconds or self._rows >= 64:
                break
            self._rows += 1

    def step(self) -> torch.Tensor:
        """One step; its loss."""
        words = torch.randint(WORDS, (self._rows, LENGTH))
        loss = nn.functional.cross_entropy(self.model(words).transpose(1, 2), words)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def _timed(self) -> float:
        begun = time.perf_counter()
        self.step()
        return time.perf_counter() - begun


class Hooks:
    """Seconds in what hooks are registered between `before` and `after`."""

    def __init__(self) -> None:
        self.spent = self._since = 0.0

    def before(self, *_: object) -> None:
        """The others begin."""
        self._since = time.perf_counter()

    def after(self, *_: object) -> None:
        """The others have ended."""
        self.spent += time.perf_counter() - self._since


class Watched(NamedTuple):
    """A way to watch: pushes a step's loss, is switched on and off, says how often it measures, and ends."""

    push: Callable[[int, torch.Tensor], object]
    switch: Callable[[bool], None]
    every: Callable[[], str]
    stop: Callable[[], object]


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    milliseconds, pairs = float(sys.argv[1]), int(sys.argv[2])
    os.environ |= {"TRACKSIDE_ENDPOINT": f"ipc://{tempfile.mkdtemp()}/nobody.sock", "WANDB_MODE": "offline"}
    os.environ |= {"TRACKSIDE_SPOOL": tempfile.mkdtemp(), "WANDB_DIR": tempfile.mkdtemp(), "WANDB_SILENT": "true"}
    print("| way | step, ms | of it in its hooks | longer by | measured each |\n|---|---:|---:|---:|---:|")
    for name, way in WAYS.items():
        try:
            print(f"| {name} | {measured(way, milliseconds, pairs)} |", flush=True)
        except ImportError as error:
            print(f"| {name} | is not installed ({error.name}) | | | |", flush=True)


def measured(way: Way, milliseconds: float, pairs: int) -> str:
    """The figures of one way."""
    training, hooks = Training(milliseconds), Hooks()
    one = way(training.model, training.optimizer, hooks)
    chance, number, differences, shares, plain = random.Random(4711), 0, [], [], []
    for pair in range(pairs + 1):
        took = {}
        for watches in chance.sample((True, False), 2):
            one.switch(watches)
            begun, hooks.spent = time.perf_counter(), 0.0
            for number in range(number, number + BLOCK):  # noqa: B020  it goes on
                one.push(number, training.step())
            took[watches] = time.perf_counter() - begun
            if watches and pair:
                shares.append(hooks.spent / took[True] * 100)
        if pair:  # the first pair warms up
            differences.append((took[True] / took[False] - 1) * 100)
            plain.append(took[False] / BLOCK * 1000)
    every = one.every()
    one.stop()
    median, low, high = bootstrapped(np.array(differences))
    share = f"{statistics.mean(shares):.3f} %" if any(shares) else ""
    return f"{statistics.median(plain):.2f} | {share} | {median:+.2f} % [{low:.2f}, {high:.2f}] | {every}"


def _watched(model: nn.Module, optimizer: torch.optim.Optimizer, hooks: Hooks) -> Watched:
    run = trackside.init("watched")
    optimizer.register_step_pre_hook(hooks.before)
    optimizer.register_step_post_hook(hooks.before)
    watcher = run.watch(model, optimizer)
    optimizer.register_step_pre_hook(hooks.after)
    optimizer.register_step_post_hook(hooks.after)
    every = [
        *(model._forward_pre_hooks, model._forward_hooks),
        *(optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks),
    ]
    on = [dict(one) for one in every]
    polled, joins = run._polled, run._made_beside()

    def switch(watches: bool) -> None:
        for one, kept in zip(every, on, strict=True):
            one.clear()
            one.update(kept if watches else {})
        run._polled, run._joins = (polled, joins) if watches else ((), None)

    return Watched(
        lambda step, loss: run.push(step=step, loss=loss),
        switch,
        lambda: f"{watcher._gradients.every} and {watcher._weights.every} steps",
        run.finish,
    )


def _wandb(model: nn.Module, _: torch.optim.Optimizer, __: Hooks) -> Watched:
    run = import_module("wandb").init(project="watched")

    def switch(watches: bool) -> None:
        run.unwatch(model)
        if watches:
            run.watch(model, log="all", log_freq=100)

    return Watched(
        lambda step, loss: run.log({"loss": float(loss)}, step=step), switch, lambda: "100 steps", run.finish
    )


WAYS: dict[str, Way] = {"`run.watch`": _watched, "wandb.watch, gradients and parameters": _wandb}

if __name__ == "__main__":
    main()
