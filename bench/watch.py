"""What watching a model costs: steps with it and without, in pairs of random order one after the other, on one thread.

    python bench/watch.py 10 1500        steps of about 10 ms; 1500 pairs of each way, and as many null pairs

The hooks are put on and taken off between steps, outside of what is timed; all else runs on. So whoever watches sees each
fourth step, and is told that its time is four times as short. Each step pushes its loss, in
both arms; nobody listens to it. *Calls* is the time between the begin and the end of each of its hooks, which is exact: the
mean of a step, and so with the rare steps in which much is measured. *Longer by* is what the steps differ by, of each
pair, which knows also what lies around the calls, and is as noisy as the machine: its mean and its median, with the
interval that they are in with 95 %.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from importlib import import_module
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from bench.hooks import Calls, Switch
from bench.pairs import Pairs
from torch import nn

import trackside
from trackside.stages import _Hook
from trackside.watcher import Watcher

if TYPE_CHECKING:
    from collections.abc import Callable

    Way = Callable[[nn.Module, torch.optim.Optimizer], "Watched"]

WIDTH, LAYERS, LENGTH, WORDS = 128, 4, 64, 1000
WARM_UP = 600
"""Steps, of which half are watched: until whoever measures seldom has found how seldom."""


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
    """Steps that take about so many milliseconds, as far as words can be left out."""

    def __init__(self, milliseconds: float) -> None:
        torch.manual_seed(4711)
        self.model = Language()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self._words = 4
        while True:
            took = statistics.median(self._timed() for _ in range(15)) * 1000
            if took >= 0.9 * milliseconds or self._words >= 64 * LENGTH:
                break
            self._words += 4

    def step(self) -> torch.Tensor:
        """One step; its loss."""
        words = torch.randint(WORDS, (1, self._words))
        loss = nn.functional.cross_entropy(self.model(words).transpose(1, 2), words)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def _timed(self) -> float:
        begun = perf_counter()
        self.step()
        return perf_counter() - begun


class Watched(NamedTuple):
    """A way to watch: pushes a step's loss, says what is measured how often, and ends; *calls* if they can be timed.

    What besides hooks it has a push do is put on and taken off by *switch*.
    """

    push: Callable[[int, torch.Tensor], object]
    every: Callable[[], str]
    stop: Callable[[], object]
    switch: Callable[[bool], object] = bool
    calls: Calls | None = None


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    milliseconds, pairs = float(sys.argv[1]), int(sys.argv[2])
    os.environ |= {"TRACKSIDE_ENDPOINT": f"ipc://{tempfile.mkdtemp()}/nobody.sock", "WANDB_MODE": "offline"}
    os.environ |= {"TRACKSIDE_SPOOL": tempfile.mkdtemp(), "WANDB_DIR": tempfile.mkdtemp(), "WANDB_SILENT": "true"}
    print(
        "| way | step | calls | longer by, mean | median | null pairs, mean | measured |\n|---|---:|---:|---:|---:|---:|---:|"
    )
    for name, way in WAYS.items():
        try:
            print(f"| {name} | {measured(way, milliseconds, pairs)} |", flush=True)
        except ImportError as error:
            print(f"| {name} | is not installed ({error.name}) | | | | | |", flush=True)


def measured(way: Way, milliseconds: float, pairs: int) -> str:
    """The figures of one way."""
    training, plan = Training(milliseconds), Pairs(pairs, WARM_UP)
    one = way(training.model, training.optimizer)
    switch = Switch(training.model, training.optimizer)
    taken, shares = [], []
    for number, watches in enumerate(plan.arms):
        switch.off()
        if watches:  # both arms find in the caches what this touches
            switch.on()
        one.switch(watches)
        spent = one.calls.spent if one.calls else 0.0
        begun = perf_counter()
        one.push(number, training.step())
        taken.append(perf_counter() - begun)
        if watches and number >= WARM_UP and one.calls:
            shares.append(one.calls.spent - spent)
        if not watches:
            switch.on()
            one.switch(True)
    one.stop()
    found = plan.figures([(one, one) for one in taken])
    step = found["step"]
    share = f"{statistics.mean(shares) / step * 100:.2f} %" if shares else "-"
    means = [f"{middle:+.2f} % [{low:+.2f}, {high:+.2f}]" for middle, low, high in (found["mean"], found["null mean"])]
    middle, low, high = found["longer"]
    return f"{step * 1000:.1f} ms | {share} | {means[0]} | {middle:+.2f} % [{low:+.2f}, {high:+.2f}] | {means[1]} | {one.every()}"


def _watched(model: nn.Module, optimizer: torch.optim.Optimizer) -> Watched:
    calls, run = Calls(), trackside.init("watched")
    for kind, name in ((Watcher, "_pre_hook"), (Watcher, "_post_hook"), (_Hook, "__call__")):
        setattr(kind, name, calls.timed(getattr(kind, name)))
    watcher = run.watch(model, optimizer)
    stages = watcher._stages
    assert stages is not None
    for pace in (watcher._gradients, watcher._weights, stages._lots._pace):
        pace._share /= 4  # it sees each fourth step, and takes the others for a part of that

    def every() -> str:
        gradients, weights, stage = watcher._gradients.every, watcher._weights.every, stages._lots._pace.every
        return f"gradients each {gradients}, weights each {weights}, stages of each {stage} steps"

    kept: list[Any] = []

    def switch(watches: bool) -> None:
        if watches and kept:
            run._polled, run._joins = kept.pop()
        elif not watches:
            kept.append((run._polled, run._joins))
            run._polled, run._joins = (), None

    return Watched(lambda step, loss: run.push(step=step, loss=loss), every, run.finish, switch, calls)


def _wandb(model: nn.Module, _: torch.optim.Optimizer) -> Watched:
    run = import_module("wandb").init(project="watched")
    run.watch(model, log="all", log_freq=100)
    return Watched(
        lambda step, loss: run.log({"loss": float(loss)}, step=step), lambda: "both each 100 steps", run.finish
    )


WAYS: dict[str, Way] = {"`run.watch`": _watched, "wandb.watch, gradients and parameters": _wandb}

if __name__ == "__main__":
    main()
