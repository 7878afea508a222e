"""The stages of a watched step on a real GPU: their times by its own clock, its memory, and never a wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from client.router import unsent_rows
from gpu.occupying import occupy

from trackside.pytorch.step_stages import StepStages

if TYPE_CHECKING:
    from collections.abc import Iterator

    import trackside

SIZE = 4096
STEPS = 20
SLEEP = 20_000_000
"""GPU clock cycles: about 10 ms."""

pytestmark = [  # PyTorch's own: its sync debug mode, say, is a prototype
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore:::torch"),
]


class Sleeping(torch.autograd.Function):  # type: ignore[misc]
    """A function that keeps the GPU busy for some time forward, and three times as long backward."""

    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        occupy(SLEEP)
        return x.clone()

    @staticmethod
    def backward(_: Any, grad: torch.Tensor) -> torch.Tensor:
        occupy(3 * SLEEP)
        return grad


class Slow(torch.nn.Linear):  # type: ignore[misc]
    """A linear layer followed by a `Sleeping`."""

    def forward(self, x: torch.Tensor) -> Any:
        return Sleeping.apply(super().forward(x))


@pytest.fixture
def no_sync(gpu: None) -> Iterator[None]:
    """A mode in which PyTorch raises an error wherever the host would wait for the device."""
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


def seconds_of_sleep() -> float:
    """Return the seconds of `SLEEP` cycles, once an idle GPU has raised its clocks."""
    occupy(100 * SLEEP)
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    occupy(SLEEP)
    last.record()
    torch.cuda.synchronize()
    return float(first.elapsed_time(last)) / 1000


def watched(run: trackside.Run, model: Any, optimizer: Any = None) -> Any:
    stages = StepStages(run.queue, model, optimizer)
    run.queue.register(stages)
    if optimizer is not None:
        optimizer.register_step_post_hook(lambda *_: stages.optimizer_stepped())
    return model


def test_the_gpu_s_time_of_each_stage_is_its_own_and_nothing_waits(run: trackside.Run, no_sync: None) -> None:
    model = Slow(16, 16, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.ones(4, 16, device="cuda")
    model(x).sum().backward()  # kernels are loaded
    optimizer.step()
    torch.cuda.set_sync_debug_mode("default")
    one = seconds_of_sleep()
    torch.cuda.set_sync_debug_mode("error")
    watched(run, model, optimizer)
    for step in range(STEPS):
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        run.push(step=step, loss=loss)
    assert not torch.cuda.current_stream().query()  # the host is ahead
    torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    _, totals = unsent_rows(run)
    assert totals.device is not None
    spent = totals.device.phases
    assert spent["forward"] == pytest.approx(STEPS * one, rel=0.2)
    assert spent["backward"] == pytest.approx(3 * STEPS * one, rel=0.2)
    assert 0 < spent["optimizer"] < STEPS * one
    assert totals.phases["backward"] < spent["backward"]  # which the host has only asked for


def test_memory_is_the_allocator_s_and_the_user_s_maximum_is_his(run: trackside.Run, no_sync: None) -> None:
    watched(run, torch.nn.Linear(1, 1, device="cuda"))
    before = torch.cuda.memory_allocated()
    big = torch.empty(64 * 2**20, dtype=torch.uint8, device="cuda")
    run.push(step=0, loss=1.0)
    del big
    torch.cuda.reset_peak_memory_stats()
    own = torch.cuda.max_memory_allocated()
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(2**50, dtype=torch.uint8, device="cuda")
    run.push(step=1, loss=1.0)
    _, totals = unsent_rows(run)
    assert torch.cuda.max_memory_allocated() == own < before + 64 * 2**20
    assert totals.device is not None
    (memory,) = totals.device.memory.values()
    assert (memory.allocated, memory.reserved) == (torch.cuda.memory_allocated(), torch.cuda.memory_reserved())
    assert memory.peak >= before + 64 * 2**20
    assert memory.out_of_memory == 1
    assert next(iter(totals.device.memory)).startswith("GPU-")


def test_a_captured_step_is_replayed_as_it_would_be_unwatched(run: trackside.Run) -> None:
    model = watched(run, torch.nn.Linear(16, 1, device="cuda"))
    x = torch.ones(4, 16, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        model(x).sum().backward()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = model(x).sum()
        out.backward()
        run.push(loss=1.0)
    graph.replay()
    torch.cuda.synchronize()
    assert out.item() == pytest.approx(model(x).sum().item())
    _, totals = unsent_rows(run)
    assert totals.device is not None
    assert set(totals.device.phases) == {"forward", "backward"}
