"""Measure the host time of a push of two GPU scalars, compared with floats and with ``.item()``; print JSON.

    python bench/device.py ipc:///tmp/push.sock

Each step queues some milliseconds of GPU work, like a training that runs ahead of its device.

"""

from __future__ import annotations

import json
import sys
from array import array
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from bench.calls import summary

import trackside

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS = 2000
WARM_UP = 100
SIZE = 4096


def main() -> None:
    """Measure, or state that there is no GPU."""
    import torch

    if not torch.cuda.is_available():
        print(json.dumps({}))
        return
    run = trackside.init("device", endpoint=sys.argv[1])
    weights = torch.randn(SIZE, SIZE, device="cuda")

    def work() -> tuple[Any, Any]:
        hidden = weights @ weights
        return hidden.mean(), hidden.norm()

    def scalars(step: int, loss: Any, norm: Any) -> None:
        run.push(step=step, loss=loss, grad_norm=norm)

    def items(step: int, loss: Any, norm: Any) -> None:
        run.push(step=step, loss=loss.item(), grad_norm=norm.item())

    found = {
        "floats": timed(lambda: (work(), (2.5, 1.5))[1], scalars, torch.cuda.synchronize),
        "device scalars": timed(work, scalars, torch.cuda.synchronize),
        ".item() of each": timed(work, items, torch.cuda.synchronize),
    }
    run.finish()
    print(json.dumps({"device": torch.cuda.get_device_name(), **{name: summary(each) for name, each in found.items()}}))


def timed(
    work: Callable[[], tuple[Any, Any]], way: Callable[[int, Any, Any], None], settle: Callable[[], None]
) -> array[int]:
    """Return nanoseconds of each call, while the device is at most a few steps behind."""
    times = array("q")
    for step in range(WARM_UP + STEPS):
        loss, norm = work()
        begun = perf_counter_ns()
        way(step, loss, norm)
        times.append(perf_counter_ns() - begun)
        if step % 8 == 7:
            settle()
    return times[WARM_UP:]


if __name__ == "__main__":
    main()
