"""Time steps with and without a push, in pairs of random order between null pairs; print JSON.

    python bench/steps.py ipc:///tmp/push.sock 1.0 8 10000    as many pairs of steps of 1 ms through 8 MiB, and null pairs

The sender's thread is not included, since it runs during both arms.
"""

from __future__ import annotations

import json
import sys
from time import perf_counter_ns
from typing import TYPE_CHECKING

import trackside
from bench.pairs import Pairs
from bench.work import calibrated

if TYPE_CHECKING:
    from collections.abc import Callable

WARM_UP = 400


def main() -> None:
    """Measure what the command line names."""
    endpoint, milliseconds, mebibytes, pairs = sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
    run, plan = trackside.init("steps", endpoint=endpoint), Pairs(pairs, WARM_UP)
    steps, calls = timed(run, calibrated(milliseconds, mebibytes), plan.arms)
    run.finish()
    plain, longer, null = plan.compared(steps)
    pushed, without = (arm[plan.tested] for arm in plan.split(calls))
    share = float(pushed.mean() - without.mean()) / plain * 100
    print(json.dumps({"step": plain, "pairs": pairs, "push": longer, "null": null, "share": share}))


def timed(run: trackside.Run, work: Callable[[], None], arms: list[bool]) -> tuple[list[float], list[float]]:
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
        steps.append((ended - begun) / 1000)
        calls.append((ended - worked) / 1000)
    return steps, calls


def empty() -> None:
    """Do nothing."""


if __name__ == "__main__":
    main()
