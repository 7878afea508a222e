"""Steps with a push and without, in pairs of random order one after the other, between pairs without any; prints JSON.

    python bench/steps.py ipc:///tmp/push.sock 1.0 8 10000    as many pairs of steps of 1 ms through 8 MiB, and null pairs

What a push costs is less than a step varies, and far less than a machine varies within seconds: only differences within
pairs show it, of arms of equal size, by their median. The sender's thread is not in them, since it runs during both.
"""

from __future__ import annotations

import json
import random
import sys
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np
from bench.work import calibrated

import trackside

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

RESAMPLES = 1000
WARM_UP = 200


def main() -> None:
    """Measure what the command line names."""
    endpoint, milliseconds, mebibytes, pairs = sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
    run = trackside.init("steps", endpoint=endpoint)
    work = calibrated(milliseconds, mebibytes)
    timed(run, work, [True, False] * WARM_UP)
    chance = random.Random(4711)
    tested = [True] * pairs + [False] * pairs
    chance.shuffle(tested)
    first = [chance.random() < 0.5 for _ in tested]
    arms = [one for test, early in zip(tested, first, strict=True) for one in (test and early, test and not early)]
    steps, calls = timed(run, work, arms)
    run.finish()
    print(json.dumps(compared(steps.reshape(-1, 2), calls.reshape(-1, 2), np.array(tested), np.array(first))))


def timed(
    run: trackside.Run, work: Callable[[], None], arms: list[bool]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """How long each step took, and the call at its end, in microseconds: a push in some of them, else an empty one."""
    steps, calls = [], []
    for step, pushes in enumerate(arms):
        loss = 2.5 - step * 1e-6
        begun = perf_counter_ns()
        work()
        worked = perf_counter_ns()
        if pushes:
            run.push(step=step, loss=loss, grad_norm=loss, learning_rate=loss, accuracy=loss, perplexity=loss)
        else:
            empty()
        ended = perf_counter_ns()
        steps.append(ended - begun)
        calls.append(ended - worked)
    return np.array(steps) / 1000, np.array(calls) / 1000


def empty() -> None:
    """Is called."""


def compared(
    steps: NDArray[np.float64], calls: NDArray[np.float64], tested: NDArray[np.bool_], first: NDArray[np.bool_]
) -> dict[str, Any]:
    """The differences within pairs and the calls' means, in percent of the median step."""
    plain = float(np.median(np.where(first, steps[:, 1], steps[:, 0])))
    difference = np.where(first, steps[:, 0] - steps[:, 1], steps[:, 1] - steps[:, 0])
    pushed, without = np.where(first, calls[:, 0], calls[:, 1]), np.where(first, calls[:, 1], calls[:, 0])
    return {
        "step": plain,
        "pairs": int(tested.sum()),
        "push": bootstrapped(difference[tested] / plain * 100),
        "null": bootstrapped(difference[~tested] / plain * 100),
        "share": float(pushed[tested].mean() - without[tested].mean()) / plain * 100,
        "call": float(np.median(pushed[tested])),
    }


def bootstrapped(
    differences: NDArray[np.float64], middle: Callable[..., Any] = np.median
) -> tuple[float, float, float]:
    """Their median, or another *middle*, and the interval that it is in with 95 %."""
    chance = np.random.default_rng(4711)
    middles = [middle(chance.choice(differences, len(differences))) for _ in range(RESAMPLES)]
    low, high = np.percentile(middles, [2.5, 97.5])
    return float(middle(differences)), float(low), float(high)


if __name__ == "__main__":
    main()
