"""Profiles and memory of a training on a real GPU, as the client records them."""

from __future__ import annotations

import gzip
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from processes import DEADLINE

from trackside.captures.kineto import is_tested
from trackside.captures.memory import memory
from trackside.captures.profiler import profile
from trackside.wire import Profile, ProfileQuestion
from trackside_daemon.captures.summary.steps import cut
from trackside_daemon.captures.summary.trace import decode
from trackside_daemon.captures.summary.trace_summary import summarize_trace as summary

pytestmark = [
    pytest.mark.skipif(not is_tested(torch.__version__), reason="the installed PyTorch is not a tested version"),
    pytest.mark.filterwarnings("ignore:::torch"),
]


class Training:
    """A model whose steps read a value of the GPU after each operation, or not."""

    def __init__(self, *, synchronises: bool) -> None:
        self._synchronises = synchronises
        self._layers = [torch.nn.Linear(256, 256, device="cuda") for _ in range(20)]
        self._optimizer = torch.optim.SGD([one.weight for one in self._layers], lr=1e-4)
        self._batch = torch.ones(64, 256, device="cuda")

    def step(self) -> None:
        """Make a step."""
        found = self._batch
        for layer in self._layers:
            found = layer(found)
            if self._synchronises:
                found.sum().item()
        self._optimizer.zero_grad()
        found.square().mean().backward()
        self._optimizer.step()

    def profiled(self) -> dict[str, Any]:
        """Return the summary of a profile that another thread records meanwhile."""
        for _ in range(20):
            self.step()
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(profile, ProfileQuestion(0.5))
            while not future.done():
                self.step()
            answer: Profile = future.result(DEADLINE)
        assert answer.error == ""
        trace = decode(gzip.decompress(answer.trace))
        return summary(trace, cut(trace, 5))


def test_reading_a_value_after_each_operation_is_a_bottleneck_of_synchronisation(gpu: None) -> None:
    found = Training(synchronises=True).profiled()
    assert found["device"] == "gpu"
    assert found["bottleneck"]["class"] in {"copy", "host"}
    assert found["host"]["syncs"] >= 20
    assert Training(synchronises=False).profiled()["host"]["syncs"] < 5


def test_memory_is_named_by_the_line_that_allocated_it(gpu: None) -> None:
    memory()  # has PyTorch record stacks
    held = [torch.empty(1 << 20, dtype=torch.float32, device="cuda") for _ in range(8)]
    (allocator,) = [one for one in memory().allocators if one.name == "cuda:0"]
    assert allocator.allocated >= 32 << 20
    largest = allocator.sites[0]
    assert largest.bytes >= 32 << 20
    assert any(__file__ in frame for frame in largest.frames)
    assert len(held) == 8
