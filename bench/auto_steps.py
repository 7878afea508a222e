"""Time steps of a PyTorch loop with and without the hooks of `--auto`, in pairs of random order; print JSON.

    python bench/auto_steps.py ipc:///tmp/push.sock 400            pairs of `BLOCK` steps, and as many null pairs
    python bench/auto_steps.py ipc:///tmp/push.sock 1000 stages    pairs of steps of about 10 ms, some of which are timed

The hooks are put in place and removed between blocks of one training, so that both arms see the same machine. A single step
after a change would be one for which the interpreter has no caches.

"""

from __future__ import annotations

import json
import os
import statistics
import sys
from time import perf_counter_ns, sleep
from typing import Any

from bench.pairs import Pairs, now
from trackside.auto.startup.trackside_imports import watch
from trackside.auto.startup.trackside_patched_methods import PATCHED_METHODS

WARM_UP = 40
BLOCK = 20
CALLS = 10_000
FIRST = 5  # steps after a change that are not timed


class Hooks:
    """The hooks of this process, all of which can be put in place and removed."""

    def __init__(self) -> None:
        import torch
        from torch.optim import optimizer
        from torch.utils.data.dataloader import _BaseDataLoaderIter

        owners: list[tuple[Any, str]] = [(torch.autograd, "backward"), (_BaseDataLoaderIter, "__next__")]
        self._patched = [(owner, name, getattr(owner, name)) for owner, name in owners]
        self._after_steps = optimizer._global_optimizer_post_hooks
        self._hooks = dict(self._after_steps)
        assert self._hooks

    def turn(self, *, on: bool) -> None:
        """Put all hooks in place, or remove them."""
        for owner, name, patched in self._patched:
            setattr(owner, name, patched if on else patched.__wrapped__)
        self._after_steps.clear()
        if on:
            self._after_steps.update(self._hooks)


def main() -> None:
    """Measure what the command line names."""
    os.environ["TRACKSIDE_ENDPOINT"], pairs = sys.argv[1], int(sys.argv[2])
    watch(PATCHED_METHODS)
    if sys.argv[3:] == ["stages"]:
        import torch

        from bench.watch import measured

        torch.set_num_threads(1)
        print(json.dumps(measured(staged, pairs)))
    else:
        print(json.dumps(short_steps(pairs)))


def staged(*_: object) -> Any:
    """Return the hooks as a way to watch a model of bench/watch.py, which removes those on modules itself."""
    from bench.hooks import SEEN
    from bench.watch import Watched
    from trackside.auto.pytorch import watches

    hooks = Hooks()
    adapted: list[Any] = []

    def switch(on: bool) -> None:
        hooks.turn(on=on)
        if not adapted and (stages := watches[0].stages) is not None:
            stages._sampler._budget._share /= SEEN
            adapted.append(stages)

    return Watched(switch=switch)


def short_steps(pairs: int) -> dict[str, Any]:
    """Return the figures of steps that are as short as they get, and of calls of the hooks by themselves."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    torch.set_num_threads(1)
    hooks, plan = Hooks(), Pairs(pairs, WARM_UP)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(4096, 64), torch.randn(4096, 1))
    loader = DataLoader(data, batch_size=16)
    batches = iter(loader)

    def train(steps: int) -> None:
        nonlocal batches
        for _ in range(steps):
            try:
                inputs, targets = next(batches)
            except StopIteration:
                batches = iter(loader)
                inputs, targets = next(batches)
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    measured: list[tuple[float, float]] = []
    for on in plan.arms:
        hooks.turn(on=on)
        train(FIRST)
        begun = now()
        train(BLOCK)
        wall, cpu = now()
        measured.append(((wall - begun[0]) / BLOCK, (cpu - begun[1]) / BLOCK))
    inputs, targets = next(iter(loader))
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    calls = back_to_back(iter(loader), [inputs, targets], loss, optimizer)
    return {**plan.figures(measured, [0.0] * len(measured)), "back to back": calls}


def back_to_back(batches: Any, batch: Any, loss: Any, optimizer: Any) -> float:
    """Return the median microseconds of the hooks of a step, called by themselves with the caches warm."""
    from trackside.auto.hooks import hooks
    from trackside.auto.pytorch import watches

    waits, waited = hooks["torch: begin of a wait for data"].work, hooks["torch: batch"].work
    backward, stepped = hooks["torch: autograd.backward"].work, watches[0].after_step
    next(batches)  # so that the iterator has what the hooks add to it
    measured = []
    for number in range(CALLS):
        begun = perf_counter_ns()
        waited(waits(batches), batches, batch)
        backward(loss)
        stepped(optimizer, (optimizer,), {})
        measured.append((perf_counter_ns() - begun) / 1000)
        if not number % 1000:
            sleep(0.2)  # for the sender
    return statistics.median(measured)


if __name__ == "__main__":
    main()
