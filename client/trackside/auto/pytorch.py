"""PyTorch: hooks on backward passes, optimizers, gradient scalers and data loaders, for `TrainingWatch`."""

from __future__ import annotations

import os
from functools import wraps
from typing import Any

from trackside.auto.hooks import Hook
from trackside.auto.method_wrapping import after
from trackside.auto.saved_files import SavedFiles
from trackside.auto.training import TrainingWatch

watches: list[TrainingWatch] = []
"""The watch of this process, once PyTorch is imported."""


def _watch() -> TrainingWatch:
    if not watches:
        import torch

        watches.append(TrainingWatch(torch.compiler.is_compiling, torch.is_grad_enabled))
        os.register_at_fork(after_in_child=watches[0].forked)
    return watches[0]


def pause(*, on: bool) -> None:
    """Leave a training to a framework's callback, or no longer."""
    for watch in watches:
        watch.is_paused = on


def exclude_hooks(add: Any, hook: str) -> Any:
    """Leave the hooks out of what `torch.compile` compiles: they would do nothing in compiled code."""
    add("trackside")
    return add


def register_step_hook(optimizers: Any, name: str) -> Any:
    """Call a hook after each step of all optimizers."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    hook = Hook(name, _watch().stepped)

    def after_step(optimizer: Any, given: Any, named: Any) -> None:
        if hook.is_on:
            try:  # as `Hook` does, with a call less in each step
                hook.work(optimizer, given, named)
            except Exception as error:  # noqa: BLE001  training must go on
                hook.fail(error)

    register_optimizer_step_post_hook(after_step)
    return optimizers


def backward(original: Any, name: str) -> Any:
    """Call a hook before each backward pass."""
    hook = Hook(name, _watch().backward)

    @wraps(original)
    def backward(tensors: Any, grad_tensors: Any = None, *given: Any, **named: Any) -> Any:
        if hook.is_on and grad_tensors is None:
            try:
                hook.work(tensors)
            except Exception as error:  # noqa: BLE001  the same
                hook.fail(error)
        return original(tensors, grad_tensors, *given, **named)

    return backward


def scale(original: Any, name: str) -> Any:
    """Call a hook with each loss that a gradient scaler scales, and the product."""
    hook = Hook(name, _watch().scaled)

    @wraps(original)
    def scale(self: Any, outputs: Any) -> Any:
        product = original(self, outputs)
        hook(outputs, product)
        return product

    return scale


def scaler_step(original: Any, name: str) -> Any:
    """Call a hook after each step of a gradient scaler."""
    watch = _watch()
    hook = Hook(name, watch.scaler_stepped)

    @wraps(original)
    def step(self: Any, optimizer: Any, *given: Any, **named: Any) -> Any:
        before = watch.scaler_begins()
        result = original(self, optimizer, *given, **named)
        hook(before, optimizer)
        return result

    return step


def save(original: Any, name: str) -> Any:
    """Call a hook after each call of `torch.save`."""
    import torch

    saved_files, watch = SavedFiles(), _watch()

    def saved(obj: Any, f: Any, *_: Any, **__: Any) -> None:
        if not watch.is_paused:
            saved_files.report(f)

    replaced = after(saved)(original, name)
    if (
        torch.serialization.save is original
    ):  # by this name it is pickled, as for a process that saves in the background
        torch.serialization.save = replaced
    return replaced


def next_batch(original: Any, name: str) -> Any:
    """Call hooks before and after each wait for a batch."""
    watch = _watch()
    begins, ends = Hook("torch: begin of a wait for data", watch.waits), Hook("torch: batch", watch.waited)
    fails = Hook("torch: end of the data", watch.ran_out)

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

    return next_batch
