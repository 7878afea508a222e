"""Time one way to log five values, call by call, in a separate process; print JSON.

    python bench/calls.py "run.push" ipc:///tmp/push.sock        back to back
    python bench/calls.py "run.push" ipc:///tmp/push.sock 1.0 8  between steps of 1 ms of real work through 8 MiB

Nothing is subtracted: an empty call is measured like the others. The garbage collector runs as it does for users.

"""

from __future__ import annotations

import json
import os
import sys
import time
from array import array
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

CALLS = 300_000
SECONDS = 3.0
"""Limits of a measurement: number of calls, and seconds."""

BURST = 1_000
PAUSE = 0.05
"""Seconds between bursts of calls: a tight loop outruns every sender, and would measure how a full queue is emptied."""

NAMES = ("loss", "grad_norm", "learning_rate", "accuracy", "perplexity")
DICT = ", ".join(f'"{name}": {name}' for name in NAMES)
KEYWORDS = ", ".join(f"{name}={name}" for name in NAMES)

#: By name: the setup, and the statement that is timed, as users write it.
CONTENDERS = {
    "an empty call": ("def empty(): pass", "empty()"),
    "deque.append": (
        "from collections import deque; rows = deque(maxlen=32768)",
        f"rows.append((step, {', '.join(NAMES)}))",
    ),
    "run.push": (
        "import trackside; run = trackside.init('bench', endpoint=endpoint)",
        f"run.push(step=step, {KEYWORDS})",
    ),
    "run.push, no daemon": (
        "import logging, trackside; logging.disable(); run = trackside.init('bench', endpoint='ipc:///tmp/nobody.sock')",
        f"run.push(step=step, {KEYWORDS})",
    ),
    "run.push, loss a CPU tensor": (
        "import torch, trackside; tensor = torch.tensor(2.5); run = trackside.init('bench', endpoint=endpoint)",
        f"run.push(step=step, {KEYWORDS.replace('loss=loss', 'loss=tensor')})",
    ),
    "loss.item() of a CPU tensor": ("import torch; tensor = torch.tensor(2.5)", "tensor.item()"),
    "trackside.push": (
        "import trackside; trackside.init('bench', endpoint=endpoint)",
        f"trackside.push(step=step, {KEYWORDS})",
    ),
    "prometheus_client, 5 gauges": (
        "from prometheus_client import Gauge; "
        + "; ".join(f"{name}_gauge = Gauge('train_{name}', 'A gauge.')" for name in NAMES),
        "; ".join(f"{name}_gauge.set({name})" for name in NAMES),
    ),
    "prometheus_client, 5 gauges with labels(rank=…)": (
        "from prometheus_client import Gauge; "
        + "; ".join(f"{name}_gauge = Gauge('train_{name}', 'A gauge.', ['rank'])" for name in NAMES),
        "; ".join(f"{name}_gauge.labels(rank='0').set({name})" for name in NAMES),
    ),
    "wandb, offline": (
        "import wandb; run = wandb.init(project='bench', mode='offline')",
        f"run.log({{{DICT}}}, step=step)",
    ),
    "tensorboard, 5 add_scalar": (
        "from torch.utils.tensorboard import SummaryWriter; writer = SummaryWriter('runs')",
        "; ".join(f"writer.add_scalar('{name}', {name}, step)" for name in NAMES),
    ),
    "mlflow, SQLite": ("import mlflow; mlflow.start_run()", f"mlflow.log_metrics({{{DICT}}}, step=step)"),
    "trackio": ("import trackio; trackio.init(project='bench')", f"trackio.log({{{DICT}}}, step=step)"),
}

LOOP = """
{setup}
def loop(steps):
    for step in steps:
        {work}
        loss = 2.5 - step * 1e-6; grad_norm = loss * 0.5; learning_rate = loss * 1e-4; accuracy = 1 / loss; perplexity = loss * loss
        begun = clock()
        {statement}
        note(clock() - begun)
"""


def main() -> None:
    """Measure what the command line names."""
    name, endpoint, *step = sys.argv[1:]
    setup, statement = CONTENDERS[name]
    times = array("q")
    names: dict[str, Any] = {"clock": time.perf_counter_ns, "note": times.append, "endpoint": endpoint}
    if step:
        from bench.work import calibrated

        names["work"] = calibrated(*map(float, step))
    exec(LOOP.format(setup=setup, work="work()" if step else "", statement=statement), names)  # as timeit does
    burst, pause = (100, 0.0) if step else (BURST, PAUSE)
    share = _timed(names["loop"], burst, pause)
    print(json.dumps({**summary(times[min(burst, len(times) // 10) :]), "background": share}))
    sys.stdout.flush()
    if name.startswith(("wandb", "mlflow", "trackio")):
        os._exit(0)  # what they write or say at their end is not measured


def _timed(loop: Callable[[range], None], burst: int, pause: float) -> float:
    """Call until there are enough samples; also return the CPU of other threads meanwhile, as a share of a core."""
    begun, others = time.monotonic(), time.process_time() - time.thread_time()
    first = 0
    while first < CALLS and time.monotonic() - begun < SECONDS:
        loop(range(first, first + burst))
        first += burst
        time.sleep(pause)  # outside of what is timed
    return (time.process_time() - time.thread_time() - others) / (time.monotonic() - begun)


def summary(times: array[int]) -> dict[str, float]:
    """Return statistics in microseconds, from nanoseconds."""
    ordered = sorted(times)
    return {
        "count": len(ordered),
        "p50": ordered[len(ordered) // 2] / 1e3,
        "p99": ordered[len(ordered) * 99 // 100] / 1e3,
        "max": ordered[-1] / 1e3,
        "mean": sum(ordered) / len(ordered) / 1e3,
    }


if __name__ == "__main__":
    main()
