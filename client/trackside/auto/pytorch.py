"""PyTorch: hooks on backward passes, optimizers, gradient scalers and data loaders, for `TrainingWatch`."""

from __future__ import annotations

import os
import sys
from functools import wraps
from typing import Any

from trackside.auto.hooks import Hook
from trackside.auto.method_wrapping import after
from trackside.auto.saved_files import SavedFiles
from trackside.auto.training import TrainingWatch

watches: list[TrainingWatch] = []
"""The watch of this process, once PyTorch is imported."""


def install(name: str) -> None:
    """Install the hooks of PyTorch, or those of a module of it that is imported later."""
    if name == "torch":
        _install()
    elif name == "torch._dynamo.trace_rules":
        # Else `torch.compile` compiles the hooks of compiled code too, in which they do nothing.
        sys.modules[name].add("trackside")
    else:
        _watch_scale(sys.modules[name].ShardedGradScaler)  # of FSDP, which has a scaler of its own


def _install() -> None:
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    watch = TrainingWatch(torch.compiler.is_compiling, torch.is_grad_enabled)
    watches.append(watch)
    os.register_at_fork(after_in_child=watch.forked)
    _watch_optimizers(register_optimizer_step_post_hook, watch)
    _watch_backward(torch.autograd, watch)
    _watch_scale(torch.amp.GradScaler)
    _watch_scaler_steps(torch.amp.GradScaler, watch)
    _watch_saves(torch, watch)
    _watch_loaders(torch.utils.data.dataloader._BaseDataLoaderIter, watch)  # noqa: SLF001  the base of all iterators


def pause(*, on: bool) -> None:
    """Leave a training to a framework's callback, or no longer."""
    for watch in watches:
        watch.is_paused = on


def _watch_optimizers(register: Any, watch: TrainingWatch) -> None:
    hook = Hook("PyTorch: optimizer step", watch.stepped)

    def after_step(optimizer: Any, given: Any, named: Any) -> None:
        if hook.is_on:
            try:  # as `Hook` does, with a call less in each step
                hook.work(optimizer, given, named)
            except Exception as error:  # noqa: BLE001  training must go on
                hook.fail(error)

    register(after_step)


def _watch_backward(autograd: Any, watch: TrainingWatch) -> None:
    """Watch `torch.autograd.backward`, which `Tensor.backward` calls: `torch.compile` treats that in a special way."""
    original = autograd.backward
    hook = Hook("PyTorch: backward", watch.backward)

    @wraps(original)
    def backward(tensors: Any, grad_tensors: Any = None, *given: Any, **named: Any) -> Any:
        if hook.is_on and grad_tensors is None:
            try:
                hook.work(tensors)
            except Exception as error:  # noqa: BLE001  the same
                hook.fail(error)
        return original(tensors, grad_tensors, *given, **named)

    autograd.backward = backward


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


def _watch_saves(torch: Any, watch: TrainingWatch) -> None:
    saved_files = SavedFiles()
    is_same = torch.serialization.save is torch.save

    def saved(obj: Any, f: Any, *_: Any, **__: Any) -> None:
        if not watch.is_paused:
            saved_files.report(f)

    after(torch, "save", "PyTorch: save", saved)
    if is_same:  # by this name it is pickled, as for a process that saves in the background
        torch.serialization.save = torch.save


def _watch_loaders(iterator: Any, watch: TrainingWatch) -> None:
    original = iterator.__next__
    begins, ends = Hook("PyTorch: begin of a wait for data", watch.waits), Hook("PyTorch: batch", watch.waited)
    fails = Hook("PyTorch: end of the data", watch.ran_out)

    @wraps(original)
    def next_batch(self: Any) -> Any:
        since = 0
        if begins.is_on:
            try:  # as `Hook` does, with a result
                since = begins.work()
            except Exception as error:  # noqa: BLE001  the same
                begins.fail(error)
        try:
            batch = original(self)
        except BaseException:  # also at the end of the data, and for Ctrl-C
            fails()
            raise
        if ends.is_on:
            try:
                ends.work(since, self, batch)
            except Exception as error:  # noqa: BLE001  the same
                ends.fail(error)
        return batch

    iterator.__next__ = next_batch
