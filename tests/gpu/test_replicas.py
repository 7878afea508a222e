"""Hashes of a model on a real GPU: they are those of the CPU, and the host never waits for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from client.router import unsent_bodies
from client.test_replicas import Fixed
from client.torch_state import FakeStore
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from trackside.pytorch.replicas import tensor_hash
from trackside.wire import Pushes

if TYPE_CHECKING:
    import trackside

STEPS = 24

pytestmark = [  # PyTorch's own: its sync debug mode, say, is a prototype
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore:::torch"),
]


def test_nothing_waits_and_the_hashes_are_those_of_the_cpu(run: trackside.Run, gpu: None) -> None:
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(512, 4096), nn.Linear(4096, 3, dtype=torch.bfloat16)).cuda()
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    watcher = run.watch(model, optimizer)
    assert watcher._replicas is not None
    watcher._replicas._budget = Fixed(1)
    for step in range(STEPS):
        if step == STEPS // 2:  # kernels are loaded, and pinned memory is there
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error")
        for one in model.parameters():
            one.grad = torch.ones_like(one)
        optimizer.step()
        run.push(step=step, loss=1.0)
    torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    optimizer.step()
    run.push(step=STEPS, loss=1.0)
    distributed.destroy_process_group()
    found = [one for body in unsent_bodies(run) if isinstance(body, Pushes) for one in body.hashes]
    assert len({one.name for one in found}) == 4
    host = {name: one.detach().cpu().reshape(-1) for name, one in model.module.named_parameters()}
    for one in found:
        possible = {int(tensor_hash(torch, host[one.name], {}, columns=columns)) for columns in (False, True)}
        assert one.value in possible
