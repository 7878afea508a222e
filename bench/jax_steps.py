"""Time a loop of compiled steps of JAX with and without a push of each loss, in pairs of random order; print JSON.

    python bench/jax_steps.py ipc:///tmp/push.sock 100     pairs of parts of the loop, and as many null pairs

JAX computes ahead of the loop, so parts of `STEPS` steps are timed, each until its last loss is computed. If a push waited
for its loss, the work of the host would no longer run beside that of the device.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from importlib import import_module
from time import perf_counter
from typing import Any

import trackside
from bench.pairs import Pairs, now

jax: Any = import_module("jax")
jnp = jax.numpy

STEPS, MILLISECONDS, HOST_MILLISECONDS = 12, 6.0, 2.0
WARM_UP = 8


@jax.jit  # type: ignore[untyped-decorator]
def step(weights: Any, inputs: Any) -> tuple[Any, Any]:
    """Return the weights after a step of gradient descent, and the loss."""
    loss, gradient = jax.value_and_grad(lambda w: jnp.square(jnp.tanh(inputs @ w) - 1).mean())(weights)
    return weights - 0.01 * gradient, loss


def inputs_of(milliseconds: float, weights: Any) -> Any:
    """Return as many rows as a step takes about the wanted time for."""
    rows = 32
    while True:
        inputs = jnp.ones((rows, weights.shape[0]))
        times = []
        for _ in range(6):
            begun = perf_counter()
            jax.block_until_ready(step(weights, inputs))
            times.append(perf_counter() - begun)
        if statistics.median(times[1:]) * 1e3 >= 0.9 * milliseconds:
            return inputs
        rows += max(8, rows // 4)


def main() -> None:
    """Measure."""
    os.environ["TRACKSIDE_ENDPOINT"], pairs = sys.argv[1], int(sys.argv[2])
    weights = jnp.full((256, 256), 0.01)
    inputs, plan = inputs_of(MILLISECONDS, weights), Pairs(pairs, WARM_UP)
    run, timed, pushes = trackside.init("jax"), [], 0.0
    for pushed in plan.arms:
        begun = now()
        for _ in range(STEPS):
            weights, loss = step(weights, inputs)
            if pushed:
                before = perf_counter()
                run.push(loss=loss)
                pushes += perf_counter() - before
            until = perf_counter() + HOST_MILLISECONDS / 1e3
            while perf_counter() < until:  # what a loop does with the next batch
                pass
        loss.block_until_ready()
        ended = now()
        timed.append(((ended[0] - begun[0]) / STEPS, (ended[1] - begun[1]) / STEPS))
    run.finish()
    print(json.dumps(plan.figures(timed, [pushes / sum(plan.arms) / STEPS] * len(timed))))


if __name__ == "__main__":
    main()
