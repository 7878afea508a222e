"""A training of ranks on the CPU whose model is sharded by FSDP2, with a layer that is not sharded.

Each rank prints the result of `clip_grad_norm_` for each step: the norm of all ranks' gradients.
"""

from __future__ import annotations

import sys

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
    watcher = trackside.watch(model, optimizer)
    for step in range(STEPS):
        watcher._gradients.every = 1
        optimizer.zero_grad()
        loss = model(torch.randn(4, 7) + rank).square().sum()
        loss.backward()
        for one in whole:  # nobody else does, since FSDP was told to leave them alone
            distributed.all_reduce(one.grad)
        say(f"{rank} {step} {norm(model)}")
        optimizer.step()
        run.push(step=step, loss=loss.detach())
    say("done")
    sys.stdin.read()
    run.finish()
    distributed.destroy_process_group()


def say(text: str) -> None:
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


if __name__ == "__main__":
    main()
