"""A training of ranks on the CPU whose model is sharded by FSDP2, with a layer that is not sharded.

Each rank prints the result of `clip_grad_norm_` for each step, the norm of all ranks' gradients, and then how many values of each
layer of the whole model are in each bucket. A number of steps on standard input continues it once the daemon requests layers.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import trackside

STEPS = 3


def main() -> None:
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    torch.manual_seed(4711)
    model = nn.Sequential(nn.Linear(7, 13), nn.ReLU(), nn.Linear(13, 5), nn.Linear(5, 3))
    whole = set(model[3].parameters())
    fully_shard(model, mesh=init_device_mesh("cpu", (distributed.get_world_size(),)), ignored_params=whole)
    run = trackside.init("sharded", id="sharded-1")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    watcher = run.observe(model, optimizer, every=1)

    def train(step: int) -> float:
        watcher._gradients.every = 1
        optimizer.zero_grad()
        loss = model(torch.randn(4, 7) + rank).square().sum()
        loss.backward()
        for one in whole:  # nobody else does, since FSDP was told to leave them alone
            distributed.all_reduce(one.grad)
        clipped = norm(model)
        optimizer.step()
        run.push(step=step, loss=loss.detach())
        return clipped

    for step in range(STEPS):
        print_line(f"{rank} {step} {train(step)}")
    print_line(json.dumps({"weights": counts(model), "gradients": counts(model, gradients=True)}))
    for line in sys.stdin:
        while not run.queue.session.layers[0]:
            time.sleep(0.001)
        for step in range(STEPS, STEPS + int(line)):
            train(step)
    run.finish()
    distributed.destroy_process_group()


def print_line(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def norm(model: nn.Module) -> float:
    """Return PyTorch's norm of all gradients of all ranks.

    PyTorch clips sharded and plain parameters only separately, so the two norms are combined here.
    """
    sharded = [one for one in model.parameters() if hasattr(one, "full_tensor")]
    plain = [one for one in model.parameters() if not hasattr(one, "full_tensor")]
    parts = [nn.utils.clip_grad_norm_(some, float("inf")) for some in (sharded, plain)]
    return float(torch.linalg.vector_norm(torch.stack([parts[0].full_tensor(), parts[1]])))


def counts(model: nn.Module, *, gradients: bool = False) -> dict[str, dict[str, int]]:
    """Return how many values of each layer, of all ranks, are below each power of two and not below the one before it."""
    found: dict[str, Counter[str]] = {}
    for name, one in model.named_parameters():
        tensor = one.grad if gradients else one.detach()
        values = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        for value in values.flatten().tolist():
            bound = 2.0 ** float(torch.tensor(abs(value)).log2().ceil())
            found.setdefault(name.rpartition(".")[0], Counter())[str(bound if value > 0 else -bound / 2)] += value != 0
    return {layer: dict(some) for layer, some in found.items()}


if __name__ == "__main__":
    main()
