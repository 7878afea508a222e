"""Stage times of a watched step and utilization of its GPU, on the page of a real daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from client.gpu import Gpu
from processes import eventually

import trackside
from trackside.pytorch.step_stages import StepStages

if TYPE_CHECKING:
    from processes import Daemon

MEMORY = ("memory_allocated_bytes", "memory_reserved_bytes", "memory_peak_bytes", "out_of_memory_total")
OUT_OF_MEMORY = "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.14 GiB of which 1.00 GiB is free. "


def test_stages_and_memory_are_on_the_page_and_a_full_gpu_is_the_cause(daemon: Daemon) -> None:
    gpu, model = Gpu(), torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train() -> None:
        with trackside.init("watched", id="watched-1", endpoint=daemon.endpoint) as run:
            stages = StepStages(run.queue, model, optimizer, gpu)
            run.queue.register(stages)
            optimizer.register_step_post_hook(lambda *_: stages.optimizer_stepped())
            for step in range(3):
                loss = model(torch.ones(2, 4)).sum()
                loss.backward()
                optimizer.step()
                gpu.fill(allocated=100 * step, peak=200 * step, ooms=step)
                gpu.advance()
                run.push(step=step, loss=loss)
            raise torch.OutOfMemoryError(OUT_OF_MEMORY)

    with pytest.raises(torch.OutOfMemoryError):
        train()
    (ended,) = eventually(lambda: [one for one in daemon.api("runs").json()["runs"] if one["state"] == "failed"])
    assert ended["cause"] == "OutOfMemoryError: GPU 0 is out of memory: 2.50 GiB requested, 1.00 GiB of 79.14 GiB free"
    rank, uuid = 'rank="0",run="watched"', 'uuid="GPU-aa"'
    page = daemon.series()
    for stage in ("forward", "backward", "optimizer"):
        assert page[f'trackside_training_phase_seconds_total{{phase="{stage}",{rank}}}'] > 0
        assert f'trackside_training_device_phase_seconds_total{{phase="{stage}",{rank}}}' in page
    memory = {name: page[f"trackside_training_device_{name}{{{rank},{uuid}}}"] for name in MEMORY}
    assert memory == {
        "memory_allocated_bytes": 200,
        "memory_reserved_bytes": 2000,
        "memory_peak_bytes": 400,
        "out_of_memory_total": 2,
    }
