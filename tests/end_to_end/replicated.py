"""Trainings of ranks on the CPU, one after the other, each a run of its own with the name of what it does.

Some do to one rank, or leave out, what keeps the ranks equal; in the others, all ranks train alike. A part of the model is compared at each
step: the share of the time that it may cost is not kept. Arguments: the names, and a number of steps.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from random import Random
from typing import Any, NamedTuple

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import trackside
from trackside.pytorch import replicas

BY_HAND = {"by_hand", "seed"}  # the training averages the gradients, and no wrapper does
OWN_BUFFER = {"buffer", "excluded"}


class Flip(NamedTuple):
    """A bit of a frozen table of the model that is flipped on one rank."""

    elements: int
    rank: int
    byte: int
    bit: int


def planted(name: str, world: int) -> Flip:
    """Return the flip of the training ``flip-SEED``."""
    random = Random(name)
    elements = int(10 ** random.uniform(0, 7))
    return Flip(elements, random.randrange(world), random.randrange(4 * elements), random.randrange(8))


class Network(nn.Module):  # type: ignore[misc]
    """A network with a frozen layer, a batch norm, dropout, a buffer, and a layer that few batches need, or none."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self.first = nn.Linear(8, 16)
        self.frozen = nn.Linear(16, 16).requires_grad_(False)
        self.norm, self.dropout = nn.BatchNorm1d(16), nn.Dropout(0.1)
        self.second, self.seldom = nn.Linear(16, 4), nn.Linear(16, 4).requires_grad_(name == "find_unused")
        self.register_buffer("seen", torch.zeros(4))
        if name.startswith("flip"):
            self.table = nn.Parameter(torch.randn(planted(name, 1).elements), requires_grad=False)

    def forward(self, batch: torch.Tensor, step: int) -> Any:
        hidden = self.dropout(self.norm(self.frozen(self.first(batch).relu())))
        output = (self.seldom if self._name == "find_unused" and step % 3 == 0 else self.second)(hidden)
        if self._name in OWN_BUFFER:
            self.seen += batch[:4, 0]
        return self.late(output) if self._name == "outside" else output


class Sharded(nn.Module):  # type: ignore[misc]
    """A network of which each rank has a part, and of tensor parallelism the norm."""

    def __init__(self, name: str, world: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4), nn.LayerNorm(4))
        if name == "tensor_parallel":
            mesh = init_device_mesh("cpu", (world,))
            parallelize_module(self.layers, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        else:
            shape, names = ((world,), ("shard",)) if name == "fsdp" else ((2, world // 2), ("replicate", "shard"))
            fully_shard(self, mesh=init_device_mesh("cpu", shape, mesh_dim_names=names))

    def forward(self, batch: torch.Tensor, _: int) -> Any:
        return self.layers(batch)


def made(name: str, rank: int, world: int) -> tuple[Any, Any]:
    """Return a model, and what is in its wrapper."""
    torch.manual_seed(rank if name == "seed" else 4711)
    if name.startswith(("fsdp", "hsdp", "tensor")):
        model: Any = Sharded(name, world)
        return model, model
    inner = Network(name).to(torch.bfloat16 if name == "bfloat16" else torch.float32)
    if name in BY_HAND:
        return inner, inner
    if name == "ignored":
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(inner, ["second.bias"])
    buffers = {"broadcast_buffers": False} if name in OWN_BUFFER else {}
    model = DistributedDataParallel(inner, find_unused_parameters=name == "find_unused", **buffers)
    torch.manual_seed(rank)
    if name == "outside":
        inner.late = nn.Linear(4, 4)
    return model, inner


def disturb(name: str, inner: Any, rank: int) -> None:
    """Do to one rank what no other does."""
    if name == "branch" and rank == 1:
        inner.second.weight.grad.mul_(0.5)
    elif name == "hsdp_flip" and rank == 2:
        inner.layers[2].weight.to_local().detach().view(torch.int32)[0, 1] ^= 1 << 3
    elif name.startswith("flip"):
        flip = planted(name, distributed.get_world_size())
        if rank == flip.rank:
            inner.table.data.view(torch.uint8)[flip.byte] ^= 1 << flip.bit


def train(name: str, steps: int) -> None:
    """Train a model in a run of its own."""
    rank = distributed.get_rank()
    model, inner = made(name, rank, distributed.get_world_size())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    run = trackside.init(name, id=f"{name}-1")
    without = "se*" if name == "excluded" else ()
    watcher = run.watch(model, optimizer, replicas=name in BY_HAND or None, replicas_except=without)
    if name.startswith("flip"):
        assert watcher._replicas is not None
        steps = 2 * (watcher._replicas._ends[-1] | 1) + 2  # a tour before the flip, and one after it
    for step in range(steps):
        for part in range(2 if name == "accumulate" else 1):
            batch = torch.randn(6, 8, dtype=next(inner.parameters()).dtype)
            with model.no_sync() if name == "accumulate" and not part else nullcontext():
                loss = model(batch, step).float().square().mean()
                loss.backward()
        for one in inner.parameters() if name in BY_HAND else ():
            if one.grad is not None:
                distributed.all_reduce(one.grad)
        if step == steps // 2:
            disturb(name, inner, rank)
        optimizer.step()
        optimizer.zero_grad()
        run.push(step=step, loss=loss.detach())
    run.finish()


def main() -> None:
    distributed.init_process_group("gloo")
    replicas.SHARE = 100.0
    for name in sys.argv[1:-1]:
        train(name, int(sys.argv[-1]))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
