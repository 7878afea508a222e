"""Measure the host time of a push of two GPU scalars, compared with floats and with ``.item()``; print JSON.

    python bench/device.py ipc:///tmp/push.sock

Each step queues some milliseconds of GPU work, like a training that runs ahead of its device. PyTorch counts the calls that wait
for the device.

"""

from __future__ import annotations

import json
import sys
import warnings
from array import array
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import trackside
from bench.calls import summary

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS = 2000
WARM_UP = 100
WATCHED = 50  # steps in which waits are counted
SIZE = 4096


def main() -> None:
    """Measure, or state that there is no GPU."""
    import torch

    if not torch.cuda.is_available():
        print(json.dumps({}))
        return
    print(json.dumps({"device": torch.cuda.get_device_name(), **measured(sys.argv[1])}))


def measured(endpoint: str, device: str = "cuda", size: int = SIZE, steps: int = STEPS) -> dict[str, Any]:
    """Return the times of each way, and the number of waits in `WATCHED` steps of the two that push tensors.

    Args:
        endpoint: The endpoint of a daemon.
        device: ``cuda``; on the ``cpu`` nothing waits.
        size: Rows of the matrices that are multiplied.
        steps: Measured steps.
    """
    import torch

    run = trackside.init("device", endpoint=endpoint)
    weights = torch.randn(size, size, device=device)

    def work() -> tuple[Any, Any]:
        hidden = weights @ weights
        return hidden.mean(), hidden.norm()

    def scalars(step: int, loss: Any, norm: Any) -> None:
        run.push(step=step, loss=loss, grad_norm=norm)

    def items(step: int, loss: Any, norm: Any) -> None:
        run.push(step=step, loss=loss.item(), grad_norm=norm.item())

    def settle() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    found = {
        "floats": timed(lambda: (work(), (2.5, 1.5))[1], scalars, settle, steps),
        "device scalars": timed(work, scalars, settle, steps),
        ".item() of each": timed(work, items, settle, steps),
    }
    waited = {"device scalars": waits(work, scalars, settle), ".item() of each": waits(work, items, settle)}
    run.finish()
    return {**{name: summary(each) for name, each in found.items()}, "waits": waited}


def waits(work: Callable[[], tuple[Any, Any]], way: Callable[[int, Any, Any], None], settle: Callable[[], None]) -> int:
    """Return the number of calls in `WATCHED` steps that wait for the device, by PyTorch's sync debug mode."""
    import torch

    settle()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if torch.cuda.is_available():
            torch.cuda.set_sync_debug_mode("warn")
        for step in range(WATCHED):
            way(step, *work())
        if torch.cuda.is_available():
            torch.cuda.set_sync_debug_mode("default")
    return sum("called a synchronizing" in str(one.message) for one in caught)


def timed(
    work: Callable[[], tuple[Any, Any]],
    way: Callable[[int, Any, Any], None],
    settle: Callable[[], None],
    steps: int,
) -> array[int]:
    """Return nanoseconds of each call, while the device is at most a few steps behind."""
    times = array("q")
    for step in range(WARM_UP + steps):
        loss, norm = work()
        begun = perf_counter_ns()
        way(step, loss, norm)
        times.append(perf_counter_ns() - begun)
        if step % 8 == 7:
            settle()
    return times[WARM_UP:]


if __name__ == "__main__":
    main()
