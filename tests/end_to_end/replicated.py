"""Trainings of ranks on the CPU, one after the other, each a run of its own with the name of what it does.

Some do to one rank, or leave out, what keeps the ranks equal; in the others, all ranks train alike. All parts of a model are compared
within few steps: the share of the time that it may cost is not kept. Arguments: the names, and ``steps=N``.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import trackside
from trackside.pytorch import replicas

HOLD = 3
"""Parts of a model whose ranks are compared in one tour; a fault begins after that."""


class Network(nn.Module):  # type: ignore[misc]
    """A network with a frozen layer, a batch norm, dropout, a table that nothing trains, and a layer that few batches need."""

    def __init__(self, *, unused: bool) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.frozen = nn.Linear(16, 16).requires_grad_(False)
        self.norm, self.dropout = nn.BatchNorm1d(16), nn.Dropout(0.1)
        self.second, self.seldom = nn.Linear(16, 4), nn.Linear(16, 4).requires_grad_(unused)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, batch: torch.Tensor, seldom: bool = False) -> Any:
        hidden = self.dropout(self.norm(self.frozen(self.first(batch).relu())))
        return (self.seldom if seldom else self.second)(hidden)


def train(name: str, steps: int) -> None:
    """Train a model in a run of its own."""
    rank, world = distributed.get_rank(), distributed.get_world_size()
    torch.manual_seed(rank if name == "seed" else 4711)
    model, dtype = Network(unused=name == "find_unused"), torch.bfloat16 if name == "bfloat16" else torch.float32
    inner = model.to(dtype)
    more: dict[str, Any] = {}
    if name == "tensor_parallel":
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4), nn.LayerNorm(4))
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        parallelize_module(model, init_device_mesh("cpu", (world,)), plan)
    elif name.startswith(("fsdp", "hsdp")):
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 5))
        shape, names = ((world,), ("shard",)) if name == "fsdp" else ((2, world // 2), ("replicate", "shard"))
        fully_shard(model, mesh=init_device_mesh("cpu", shape, mesh_dim_names=names))
    elif name == "by_hand" or name == "seed":
        more = {"replicas": True}
    else:
        if name == "ignored":
            DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["second.bias"])
        buffers = {"broadcast_buffers": False} if name in {"buffer", "excluded"} else {}
        model = DistributedDataParallel(model, find_unused_parameters=name == "find_unused", **buffers)
        if name == "outside":
            inner.late = nn.Linear(4, 4)
    more |= {"replicas_except": "se*"} if name == "excluded" else {}
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with trackside.init(name, id=f"{name}-1") as run:
        run.watch(model, optimizer, **more)
        torch.manual_seed(rank)
        for step in range(steps):
            late = 2 * step >= steps
            for part in range(2 if name == "accumulate" else 1):
                batch = torch.randn(6, 8, dtype=dtype)
                with model.no_sync() if name == "accumulate" and not part else nullcontext():
                    output = model(batch, step % 3 == 0) if name == "find_unused" else model(batch)
                    output = inner.late(output) if name == "outside" else output
                    loss = output.float().square().mean()
                    loss.backward()
            if name in {"by_hand", "seed"}:
                for one in model.parameters():
                    if one.grad is not None:
                        distributed.all_reduce(one.grad)
            if name == "branch" and late and rank == 1:
                nn.utils.clip_grad_norm_(model.parameters(), 1e-4)
            if name in {"buffer", "excluded"}:
                inner.seen += batch[:4, 0]
            optimizer.step()
            optimizer.zero_grad()
            if name in {"flip", "hsdp_flip"} and step == steps // 2 and rank == 2:
                weight = model[2].weight.to_local() if name == "hsdp_flip" else inner.second.weight
                weight.data.view(torch.int32).view(-1)[1] ^= 1 << 3
            run.push(step=step, loss=loss.detach())


def main() -> None:
    distributed.init_process_group("gloo")
    replicas.SHARE = 1.0
    names = [one for one in sys.argv[1:] if "=" not in one]
    steps = next((int(one.partition("=")[2]) for one in sys.argv[1:] if "=" in one), 100)
    for name in names:
        train(name, steps)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
