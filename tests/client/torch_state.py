"""State of PyTorch that has no public name: what its compiler has counted, and hooks."""

from __future__ import annotations

from typing import Any

import torch
from torch._dynamo.utils import counters
from torch.optim import optimizer as optimizers
from torch.testing._internal.distributed.fake_pg import FakeStore

__all__ = ["FakeStore", "count_graphs_anew", "graphs", "hooks_after_any_step", "module_hooks", "step_hooks"]


def count_graphs_anew() -> None:
    """Forget what was compiled."""
    torch.compiler.reset()
    counters.clear()


def graphs() -> tuple[dict[str, int], dict[str, int]]:
    """Return the breaks of graphs, and the numbers of graphs and of calls in them."""
    return dict(counters["graph_break"]), dict(counters["stats"])


def module_hooks(*modules: Any) -> list[Any]:
    """Return the hooks before and after the forward of modules."""
    return [hook for one in modules for hook in (*one._forward_pre_hooks.values(), *one._forward_hooks.values())]


def step_hooks(optimizer: Any) -> list[Any]:
    """Return the hooks before a step of an optimizer."""
    return list(optimizer._optimizer_step_pre_hooks.values())


def hooks_after_any_step() -> dict[int, Any]:
    """Return the hooks after a step of any optimizer, which may be changed."""
    hooks: dict[int, Any] = optimizers._global_optimizer_post_hooks
    return hooks
