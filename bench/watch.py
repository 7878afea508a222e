"""Time steps of a training with and without a watched model, in pairs of random order; print JSON.

    python bench/watch.py trackside ipc:///tmp/push.sock 1000     pairs of steps of about 10 ms, and as many null pairs
    python bench/watch.py wandb - 1000
    python bench/watch.py traceml - 1000

The hooks are turned on and off between steps, outside the timed part; everything else keeps running. Each step pushes its
loss in both arms.

"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

import trackside
from bench.hooks import Calls, Switch, seen_seldom
from bench.pairs import Pairs, now

if TYPE_CHECKING:
    from collections.abc import Callable

    Way = Callable[[nn.Module, torch.optim.Optimizer, Calls], "Watched"]

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
        """Return logits of the next word."""
        return self.head(self.blocks(self.words(words)))


class Training:
    """Steps of about the wanted duration, adjusted by leaving out words; on a GPU at most, until that has done them."""

    def __init__(self, milliseconds: float, device: str = "cpu") -> None:
        torch.manual_seed(4711)
        self._device = device
        self.model = Language().to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self._words = 4
        while True:
            took = statistics.median(self._timed() for _ in range(15)) * 1000
            if took >= 0.9 * milliseconds or self._words >= 64 * LENGTH:
                break
            self._words += max(4, self._words // 8)

    def step(self, backward: Callable[[torch.Tensor], Any] = torch.Tensor.backward) -> torch.Tensor:
        """Make one step and return its loss."""
        words = torch.randint(WORDS, (1, self._words), device=self._device)
        loss = nn.functional.cross_entropy(self.model(words).transpose(1, 2), words)
        self.optimizer.zero_grad()
        backward(loss)
        self.optimizer.step()
        return loss.detach()

    def settle(self) -> None:
        """Wait until the GPU has done the step; on the CPU it is done."""
        if self._device == "cuda":
            torch.cuda.synchronize()

    def _timed(self) -> float:
        begun = perf_counter()
        self.step()
        self.settle()
        return perf_counter() - begun


class Watched(NamedTuple):
    """A way to watch a model.

    Attributes:
        push: Function of a step's number and its loss.
        stop: Ends the tracker.
        switch: Turns on and off what it has besides hooks.
        around: Context in which a step runs.

    """

    push: Callable[[int, torch.Tensor], object] = lambda *_: None
    stop: Callable[[], object] = lambda: None
    switch: Callable[[bool], object] = bool
    around: Callable[[bool], AbstractContextManager[Any]] = lambda _: nullcontext()


def main() -> None:
    """Measure what the command line names."""
    torch.set_num_threads(1)
    os.environ["TRACKSIDE_ENDPOINT"] = sys.argv[2]
    print(json.dumps(measured(WAYS[sys.argv[1]], int(sys.argv[3]))))


def measured(way: Way, pairs: int, device: str = "cpu", warm_up: int = WARM_UP) -> dict[str, Any]:
    """Return the figures of one way."""
    training, plan, calls = Training(10.0, device), Pairs(pairs, warm_up), Calls()
    one = way(training.model, training.optimizer, calls)
    switch = Switch(training.model, training.optimizer)
    timed, spent = [], []
    for number, watches in enumerate(plan.arms):
        switch.off()
        if watches:  # both arms find in the caches what this touches
            switch.on()
        one.switch(watches)
        before, begun = calls.spent, now()
        with one.around(watches):
            one.push(number, training.step())
        training.settle()
        ended = now()
        timed.append((ended[0] - begun[0], ended[1] - begun[1]))
        spent.append(calls.spent - before)
        if not watches:
            switch.on()
            one.switch(True)
    one.stop()
    return plan.figures(timed, spent)


def _watched(model: nn.Module, optimizer: torch.optim.Optimizer, calls: Calls) -> Watched:
    calls.time_watching()
    run = trackside.init("watched")
    seen_seldom(run.watch(model, optimizer))
    kept: list[Any] = []

    def switch(watches: bool) -> None:
        if watches and kept:
            run.queue._polled, run.queue.pending = kept.pop()
            run.queue._update_direct_rows()
        elif not watches:
            kept.append((run.queue._polled, run.queue.pending))
            run.queue._polled, run.queue.pending = (), None
            run.queue._update_direct_rows()

    return Watched(lambda step, loss: run.push(step=step, loss=loss), run.finish, switch)


def _wandb(model: nn.Module, *_: object) -> Watched:
    run = import_module("wandb").init(project="watched")
    run.watch(model, log="all", log_freq=100)
    return Watched(lambda step, loss: run.log({"loss": float(loss)}, step=step), run.finish)


def _traceml(model: nn.Module, *_: object) -> Watched:
    traceml = import_module("traceml_ai")
    server = subprocess.Popen([Path(sys.executable).parent / "traceml", "serve"], stdout=subprocess.DEVNULL)
    traceml.init(on_missing_aggregator="raise", connect_timeout_sec=60)
    return Watched(
        stop=server.terminate, around=lambda watches: traceml.trace_step(model) if watches else nullcontext()
    )


WAYS: dict[str, Way] = {"trackside": _watched, "wandb": _wandb, "traceml": _traceml}

if __name__ == "__main__":
    main()
