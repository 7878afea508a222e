"""Time steps with and without a push, in pairs of random order between null pairs; print JSON.

    python bench/steps.py ipc:///tmp/push.sock 1.0 8 10000    as many pairs of steps of 1 ms through 8 MiB, and null pairs

A push costs less than steps vary, and far less than a machine varies within seconds. Only the median of differences within
pairs, of arms of equal size, shows it. The sender's thread is not included, since it runs during both arms.

"""

from __future__ import annotations

import json
import random
import sys
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np

import trackside
from bench.work import calibrated

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
    """Return microseconds of each step, and of the call at its end: a push in some steps, otherwise an empty call."""
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
    """Do nothing."""


def compared(
    steps: NDArray[np.float64], calls: NDArray[np.float64], tested: NDArray[np.bool_], first: NDArray[np.bool_]
) -> dict[str, Any]:
    """Return differences within pairs and mean call times, in percent of the median step."""
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
    """Return the median, or another *middle*, with its 95 % interval."""
    chance = np.random.default_rng(4711)
    middles = [middle(chance.choice(differences, len(differences))) for _ in range(RESAMPLES)]
    low, high = np.percentile(middles, [2.5, 97.5])
    return float(middle(differences)), float(low), float(high)


if __name__ == "__main__":
    main()
