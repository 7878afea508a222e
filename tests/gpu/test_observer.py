"""An observed model on a real GPU: its distributions are those of the CPU, and the host never waits for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from client.test_observer import columns, made, sent

if TYPE_CHECKING:
    import trackside

STEPS = 12

pytestmark = [  # PyTorch's own: its sync debug mode, say, is a prototype
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore:::torch"),
]


def test_nothing_waits_and_the_distributions_are_those_of_the_cpu(run: trackside.Run, gpu: None) -> None:
    model = made(2).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    batch = torch.randn(4, 12, 8, device="cuda")
    run.observe(model, optimizer, activations="*.mlp", attention="*.attn", every=2)
    for step in range(STEPS):
        if step == STEPS // 2:  # kernels are loaded, and pinned memory is there
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error")
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        run.push(step=step, loss=1.0)
    torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    for step in range(STEPS, STEPS + 2):  # what has arrived is sent with later steps
        model(batch).square().mean().backward()
        optimizer.step()
        run.push(step=step, loss=1.0)
    frames = sent(run)
    assert {frame.kind for frame in frames} == {"weights", "gradients", "activations", "attention"}
    weights = [frame for frame in frames if frame.kind == "weights"][-1]
    host = model[1].mlp[2].weight.detach().cpu()
    assert columns(weights)["1.mlp.2"]["largest"] == pytest.approx(float(host.abs().max()), rel=1e-6)
