"""Time steps of a small transformer with and without timed stages, in pairs of random order; print JSON.

    python bench/stages.py 10 400        as many pairs of steps of about 10 ms, and as many null pairs, on one thread

The hooks are turned on and off between steps, outside the timed part. Each step pushes its loss; no daemon runs. The timing
uses the CPU time of the thread, which does all work of a step, so that other load matters less.

"""

from __future__ import annotations

import json
import sys
from time import thread_time_ns
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import trackside
from bench.pairs import Pairs
from trackside.pytorch.step_stages import StepStages

if TYPE_CHECKING:
    from collections.abc import Callable

WIDTH, LAYERS, TOKENS = 128, 4, 16
WARM_UP = 100


def main() -> None:
    """Measure what the command line names."""
    milliseconds, pairs = float(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    torch.manual_seed(1)
    layer = torch.nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, LAYERS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    rows = calibrated(model, optimizer, milliseconds)
    plan = Pairs(pairs, WARM_UP)
    steps = timed(model, optimizer, rows, plan.arms)
    plain, watched, null = plan.compared(steps)
    with_, without = plan.split(steps)
    fastest, fastest_null = (  # the fastest tenth, which other load disturbs least
        float(np.percentile(with_[some], 10) - np.percentile(without[some], 10)) / plain * 100
        for some in (plan.tested, ~plan.tested)
    )
    found = {"watched": watched, "null": null, "fastest": fastest, "fastest null": fastest_null}
    print(json.dumps({"step": plain, "pairs": pairs, **found}))


def step_of(model: Any, optimizer: Any, rows: int) -> Callable[[], float]:
    """Return a function that makes one step and returns its loss."""
    batch = torch.randn(rows, TOKENS, WIDTH)

    def step() -> float:
        loss = (model(batch) - batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return step


def calibrated(model: Any, optimizer: Any, milliseconds: float) -> int:
    """Return the batch size for steps of about the wanted duration."""
    rows = 1
    while True:
        step = step_of(model, optimizer, rows)
        times = []
        for _ in range(20):
            begun = thread_time_ns()
            step()
            times.append(thread_time_ns() - begun)
        if float(np.median(times)) >= milliseconds * 1e6 * 0.9:
            return rows
        rows += 1


def timed(model: Any, optimizer: Any, rows: int, arms: list[bool]) -> list[float]:
    """Return CPU microseconds of the thread per step; some steps are watched."""
    run = trackside.init("stages", endpoint="ipc:///nowhere/push.sock")
    step = step_of(model, optimizer, rows)
    stages = StepStages(run.queue, model, optimizer)
    places = [
        *(model._forward_pre_hooks, model._forward_hooks),
        *(optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks),
    ]
    hooks = [dict(place) for place in places]
    measured = []
    for number, watched in enumerate(arms):
        run.queue._polled = (stages,) if watched else ()
        run.queue._update_direct_rows()
        for place, those in zip(places, hooks, strict=True):
            place.clear()
            place.update(those if watched else {})
        begun = thread_time_ns()
        run.push(step=number, loss=step())
        measured.append((thread_time_ns() - begun) / 1000)
    run.finish()
    return measured


if __name__ == "__main__":
    main()
