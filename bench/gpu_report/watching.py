"""Cost of watching a model on the GPU, and correctness of the times of its stages."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import torch
from client.router import unsent_rows

import trackside
from bench import watch
from bench.daemons import fresh_daemon
from bench.gpu_report.result import Figure, Result, Table
from trackside.pytorch.step_stages import StepStages

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT = 0.5
"""Percent of a step of 10 ms."""
SIZE, LAYERS, STEPS = 4096, 4, 40
FAR = 5.0
"""Percent between the seconds of a stage and those between two events around it."""


def measure(result: Result, *, rehearse: bool) -> None:
    """Measure both; in a rehearsal, on the CPU."""
    device = "cpu" if rehearse else "cuda"
    torch.set_num_threads(1)
    # First, because the other measurement replaces methods of the client for as long as this process lives.
    _stages(result, device, *((64, 3) if rehearse else (SIZE, STEPS)))
    with fresh_daemon() as daemon:
        os.environ["TRACKSIDE_ENDPOINT"] = daemon.endpoint
        measured = watch.measured(watch.WAYS["trackside"], *((20, device, 40) if rehearse else (400, device)))
    _cost(result, measured, judged=not rehearse)


def _cost(result: Result, measured: dict[str, Any], *, judged: bool) -> None:
    step = measured["step"] * 1e3
    middle, low, high = measured["mean"]
    # Of a shorter step, the same time is a larger share.
    most = max(LIMIT, LIMIT * 10 / step)
    result.figures.append(
        Figure(
            f"watch: a step of {step:.1f} ms is longer by",
            f"{middle:+.2f} % [{low:.2f}, {high:.2f}]",
            f"<= {most:.2f} % ({LIMIT:g} % of 10 ms)",
            low <= most if judged else None,
        )
    )
    null = measured["null mean"]
    result.notes.append(
        f"Watch: the mean of {measured['pairs']} pairs [95 % interval]; the limit is missed if the whole interval exceeds it. Null "
        f"pairs differ by {null[0]:+.2f} % [{null[1]:.2f}, {null[2]:.2f}]; the calls themselves take {measured['calls']:.2f} %."
    )


def _stages(result: Result, device: str, size: int, steps: int) -> None:
    run = trackside.init("stages", endpoint="ipc:///nowhere/push.sock")
    model = torch.nn.Sequential(*(torch.nn.Linear(size, size) for _ in range(LAYERS))).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    batch = torch.randn(size, size, device=device)
    _step(model, optimizer, batch, _untimed)  # kernels are loaded, and the optimizer has its state
    stages = StepStages(run.queue, model, optimizer)
    run.queue.register(stages)
    optimizer.register_step_post_hook(lambda *_: stages.optimizer_stepped())
    clock = _Clock(device)
    for step in range(steps):
        loss = _step(model, optimizer, batch, clock.timed)
        run.push(step=step, loss=loss)
    measured = clock.seconds()
    _, totals = unsent_rows(run)
    reported = totals.device.phases if totals.device is not None else totals.phases
    rows = []
    for stage in measured:
        far = abs(reported.get(stage, 0.0) / measured[stage] - 1) * 100
        result.at_most(f"stage {stage}: difference from CUDA events around it", far, FAR, "%", judged=device == "cuda")
        rows.append([stage, f"{reported.get(stage, 0.0) / steps * 1e3:.3f}", f"{measured[stage] / steps * 1e3:.3f}"])
    result.tables.append(Table(["stage, ms a step", "trackside", "events around it"], rows))


def _step(model: Any, optimizer: Any, batch: Any, timed: Callable[[str, Callable[[], Any]], Any]) -> Any:
    # The backward stage begins at the output of the model, so the loss is a part of neither.
    output = timed("forward", lambda: model(batch))
    loss = output.square().mean()
    timed("backward", loss.backward)
    timed("optimizer", optimizer.step)
    optimizer.zero_grad()
    return loss.detach()


def _untimed(_: str, call: Callable[[], Any]) -> Any:
    return call()


class _Clock:
    """Seconds by stage: between CUDA events, or of the host for a training on the CPU."""

    def __init__(self, device: str) -> None:
        self._cuda = device == "cuda"
        self._marks: list[tuple[str, Any, Any]] = []

    def timed(self, stage: str, call: Callable[[], Any]) -> Any:
        """Call a function between two marks."""
        first = self._mark()
        result = call()
        self._marks.append((stage, first, self._mark()))
        return result

    def seconds(self) -> dict[str, float]:
        """Return the sum of each stage, once the GPU is done."""
        if self._cuda:
            torch.cuda.synchronize()
        sums: dict[str, float] = {}
        for stage, first, last in self._marks:
            sums.setdefault(stage, 0.0)
            sums[stage] += first.elapsed_time(last) / 1e3 if self._cuda else last - first
        return sums

    def _mark(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event
