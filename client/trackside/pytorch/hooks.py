"""Hooks on models and optimizers that cannot disturb the training."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")

WRAPPERS = 8  # limit of nested optimizer wrappers: an object that answers to any name would unwrap without end


class Hook:
    """A hook that never raises and does nothing while PyTorch compiles.

    A copy or a pickle of the hooked model gets a function in its place that does nothing.

    Args:
        work: Called with the hook's arguments.
        fail: Called with the exception if *work* raises.
    """

    def __init__(self, work: Callable[..., None], fail: Callable[[Exception], None]) -> None:
        import torch

        self._work, self._fail, self._is_compiling = work, fail, torch.compiler.is_compiling

    def __call__(self, *given: Any) -> None:
        """Call *work*, and report what it raises."""
        if self._is_compiling():
            return
        try:
            self._work(*given)
        except Exception as error:  # noqa: BLE001  whatever of PyTorch's has failed, training must go on
            self._fail(error)

    def __reduce__(self) -> tuple[Any, ...]:
        # Of the standard library: the model can be loaded without trackside.
        return getattr, (nullcontext(), "__exit__")


def uncompiled(function: F) -> F:
    """Return a function that `torch.compile` leaves alone, with all that it calls, also when compiled code calls it."""
    compiler = sys.modules.get("torch._dynamo")
    if compiler is None:  # then nothing is compiled, and the import takes a second
        return function
    disabled: F = compiler.disable(function)
    return disabled


def unwrapped(optimizer: Any) -> Any:
    """Return PyTorch's own optimizer inside of those that Accelerate and Lightning wrap around it."""
    for _ in range(WRAPPERS):
        inner = getattr(optimizer, "optimizer", None)
        if inner is None or inner is optimizer:
            break
        optimizer = inner
    return optimizer


def remove_all(handles: list[Any]) -> None:
    """Remove the hooks of some handles, and empty the list."""
    while handles:
        handles.pop().remove()
