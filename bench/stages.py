"""Time steps of a small transformer with and without timed stages, in pairs of random order; print JSON.

    python bench/stages.py 10 400        as many pairs of steps of about 10 ms, and as many null pairs, on one thread

The hooks are turned on and off between steps, outside the timed part. Each step pushes its loss; no daemon runs. The timing
uses the CPU time of the thread, which does all work of a step, so that other load matters less.

"""

from __future__ import annotations

import json
import random
import sys
from time import thread_time_ns
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import trackside
from bench.steps import bootstrapped
from trackside.pytorch.step_stages import StepStages

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

WIDTH, LAYERS, TOKENS = 128, 4, 16
WARM_UP = 50


def main() -> None:
    """Measure what the command line names."""
    milliseconds, pairs = float(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    torch.manual_seed(1)
    layer = torch.nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, LAYERS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    rows = calibrated(model, optimizer, milliseconds)
    chance = random.Random(4711)
    tested = [True] * pairs + [False] * pairs
    chance.shuffle(tested)
    first = [chance.random() < 0.5 for _ in tested]
    arms = [one for test, early in zip(tested, first, strict=True) for one in (test and early, test and not early)]
    steps = timed(model, optimizer, rows, [True, False] * WARM_UP + arms)[2 * WARM_UP :].reshape(-1, 2)
    print(json.dumps(compared(steps, np.array(tested), np.array(first))))


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


def timed(model: Any, optimizer: Any, rows: int, arms: list[bool]) -> NDArray[np.float64]:
    """Return CPU microseconds of the thread per step; some steps are watched."""
    run = trackside.init("stages", endpoint="ipc:///nowhere/push.sock")
    step = step_of(model, optimizer, rows)
    stages = StepStages(run.queue, model, optimizer)
    places = [
        *(model._forward_pre_hooks, model._forward_hooks),
        *(optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks),
    ]
    hooks = [dict(place) for place in places]
    taken = []
    for number, watched in enumerate(arms):
        run.queue._polled = (stages,) if watched else ()
        run.queue._update_direct_rows()
        for place, those in zip(places, hooks, strict=True):
            place.clear()
            place.update(those if watched else {})
        begun = thread_time_ns()
        run.push(step=number, loss=step())
        taken.append(thread_time_ns() - begun)
    run.finish()
    return np.array(taken) / 1000


def compared(steps: NDArray[np.float64], tested: NDArray[np.bool_], first: NDArray[np.bool_]) -> dict[str, Any]:
    """Return differences within pairs in percent of the median step, and that of the fastest tenth, which other load disturbs least."""
    plain = float(np.median(np.where(first, steps[:, 1], steps[:, 0])))
    difference = np.where(first, steps[:, 0] - steps[:, 1], steps[:, 1] - steps[:, 0])
    return {
        "step": plain,
        "pairs": int(tested.sum()),
        "watched": bootstrapped(difference[tested] / plain * 100),
        "null": bootstrapped(difference[~tested] / plain * 100),
        "fastest": fastest(steps[tested], first[tested]) / plain * 100,
        "fastest null": fastest(steps[~tested], first[~tested]) / plain * 100,
    }


def fastest(steps: NDArray[np.float64], first: NDArray[np.bool_]) -> float:
    """Return how much longer the fastest tenth of one arm takes than that of the other."""
    with_, without = np.where(first, steps[:, 0], steps[:, 1]), np.where(first, steps[:, 1], steps[:, 0])
    return float(np.percentile(with_, 10) - np.percentile(without, 10))


if __name__ == "__main__":
    main()
