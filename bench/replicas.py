"""Measure in pairs what it costs a training to hash what other ranks have, too, at a step of about 10 ms.

Run by hand: ``PYTHONPATH=tests:. .venv/bin/python bench/replicas.py [PAIRS]``.

Most of a step is a wait, as for a GPU, so that the CPU time of the training's thread varies little. The process group is PyTorch's
own of one process for tests: the hashes need no collective.
"""

from __future__ import annotations

import sys
from time import sleep, thread_time
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import distributed, nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from bench.daemons import fresh_daemon
from bench.hooks import SEEN
from bench.pairs import Pairs, bootstrapped
from bench.table import head, interval, machine, row
from trackside.default_run import init
from trackside.pytorch.overhead_budget import NEVER
from trackside.pytorch.replicas import Replicas

if TYPE_CHECKING:
    from trackside.run import Run

STEP = 0.010
WARM_UP = 1000
WIDTHS = (64, 512)  # of a layer: its 16 KiB, and its MiB, which is a part of a larger one on a CPU


def main() -> None:
    """Print the table."""
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 3000
    torch.set_num_threads(1)
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    machine()
    head("a layer of", "CPU of the training's thread, share of a step", "null pairs", "steps with a hash")
    with fresh_daemon() as daemon:
        run = init("replicas", endpoint=daemon.endpoint)
        for width in WIDTHS:
            _measure(run, width, pairs)
        run.finish()
    distributed.destroy_process_group()


def _measure(run: Run, width: int, pairs: int) -> None:
    model = nn.Sequential(nn.Linear(width, width), nn.Linear(width, 1))
    optimizer = torch.optim.SGD(model[1].parameters())  # small, so that a step costs little: it is waited for
    replicas = Replicas(run.queue, [model], run.queue.after_push, True)
    replicas._budget._share /= SEEN  # one step of four is tested
    plan, spent, seen = Pairs(pairs, WARM_UP), [], 0
    hashed, before_step = 0, replicas._before_step

    def counted(*given: object) -> None:
        nonlocal hashed
        hashed += 1
        before_step(*given)

    replicas._hook = counted
    for step, tested in enumerate(plan.arms):
        model[1](torch.ones(8, width)).sum().backward()
        run.push(step=step, loss=0.5)
        sleep(STEP - 0.001)
        hooks = optimizer._optimizer_step_pre_hooks
        kept, due = dict(hooks), replicas.next_step if tested else NEVER
        if not tested:  # such a step hashes nothing
            hooks.clear()
        seen += tested
        begun = thread_time()
        optimizer.step()
        if seen >= due:
            replicas.step_finished(seen, optimizer)
        spent.append(thread_time() - begun)
        if not tested:
            hooks.update(kept)
    replicas.stop()
    one, other = plan.split(spent)
    more = (one - other) / STEP * 100
    figures = [bootstrapped(some, np.mean) for some in (more[plan.tested], more[~plan.tested])]
    row(f"{width} x {width}", *(interval(found, "+.3f") for found in figures), f"{hashed} of {seen}")


if __name__ == "__main__":
    main()
