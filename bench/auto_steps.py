"""Time steps of a PyTorch loop with and without the hooks of `--auto`, in pairs of random order; print JSON.

    python bench/auto_steps.py ipc:///tmp/push.sock 4000     pairs of steps, and as many null pairs

The hooks are put in place and removed between steps of one training, so that both arms see the same machine.

"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from bench.pairs import Pairs, now
from trackside.auto.startup import trackside_imports

WARM_UP = 400


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
    trackside_imports.watch()
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    torch.set_num_threads(1)
    hooks, plan = Hooks(), Pairs(pairs, WARM_UP)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(4096, 64), torch.randn(4096, 1))
    batches = iter(DataLoader(data, batch_size=16))
    taken: list[tuple[float, float]] = []
    for on in plan.arms:
        hooks.turn(on=on)
        begun = now()
        try:
            inputs, targets = next(batches)
        except StopIteration:
            batches = iter(DataLoader(data, batch_size=16))
            inputs, targets = next(batches)
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        wall, cpu = now()
        taken.append((wall - begun[0], cpu - begun[1]))
    print(json.dumps(plan.figures(taken, [0.0] * len(taken))))


if __name__ == "__main__":
    main()
