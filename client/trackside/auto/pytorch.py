"""PyTorch: hooks on backward passes, optimizers, gradient scalers and data loaders, for `TrainingWatch`."""

from __future__ import annotations

from functools import wraps
from typing import Any

from trackside.auto.hooks import Hook
from trackside.auto.training import TrainingWatch

watches: list[TrainingWatch] = []
"""The watch of this process, once PyTorch is imported."""


def install(name: str) -> None:
    """Install the hooks of PyTorch, or those of a module of it that has a gradient scaler of its own."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    if name != "torch":
        from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

        _watch_scale(ShardedGradScaler)
        return
    watch = TrainingWatch(torch.compiler.is_compiling, torch.is_grad_enabled)
    watches.append(watch)
    register_optimizer_step_post_hook(Hook("PyTorch: optimizer step", watch.stepped))
    # `Tensor.backward` calls this. It is not patched itself, since `torch.compile` treats its name in a special way.
    _call_before(torch.autograd, "backward", Hook("PyTorch: backward", watch.backward))
    _watch_scale(torch.amp.GradScaler)
    _watch_scaler_steps(torch.amp.GradScaler, watch)
    _watch_loaders(torch.utils.data.dataloader._BaseDataLoaderIter, watch)  # noqa: SLF001  the base of all iterators


def pause(*, on: bool) -> None:
    """Leave a training to a framework's callback, or no longer."""
    for watch in watches:
        watch.is_paused = on


def _call_before(owner: Any, name: str, hook: Hook) -> None:
    original = getattr(owner, name)

    @wraps(original)
    def called(*given: Any, **named: Any) -> Any:
        hook(*given, **named)
        return original(*given, **named)

    setattr(owner, name, called)


def _watch_scale(scaler: Any) -> None:
    original = scaler.scale
    hook = Hook(f"PyTorch: {scaler.__name__}.scale", watches[0].scaled)

    @wraps(original)
    def scale(self: Any, outputs: Any) -> Any:
        product = original(self, outputs)
        hook(outputs, product)
        return product

    scaler.scale = scale


def _watch_scaler_steps(scaler: Any, watch: TrainingWatch) -> None:
    original = scaler.step
    hook = Hook("PyTorch: GradScaler.step", watch.scaler_stepped)

    @wraps(original)
    def step(self: Any, optimizer: Any, *given: Any, **named: Any) -> Any:
        before = watch.scaler_begins()
        result = original(self, optimizer, *given, **named)
        hook(before, optimizer)
        return result

    scaler.step = step


def _watch_loaders(iterator: Any, watch: TrainingWatch) -> None:
    original = iterator.__next__
    begins, ends = Hook("PyTorch: begin of a wait for data", watch.waits), Hook("PyTorch: data", watch.waited)

    @wraps(original)
    def next_batch(self: Any) -> Any:
        begins()
        first = getattr(self, "_num_yielded", 1) == 0
        try:
            batch = original(self)
        except BaseException:  # also at the end of the data, and for Ctrl-C
            ends(self, None, first=first, is_over=True)
            raise
        ends(self, batch, first=first)
        return batch

    iterator.__next__ = next_batch
