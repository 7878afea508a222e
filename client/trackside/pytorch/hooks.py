"""Hooks on models and optimizers that cannot disturb the training, and the autograd nodes on which some are put."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from time import monotonic_ns
from typing import Any, TypeVar

F = TypeVar("F", bound="Callable[..., Any]")

WRAPPERS = 8  # limit of nested optimizer wrappers: an object that answers to any name would unwrap without end


class ModuleHook:
    """A hook that never raises and does nothing while PyTorch compiles.

    A copy or a pickle of the hooked model gets a function in its place that does nothing.

    Args:
        work: Called with the hook's arguments.
        fail: Called with the exception if *work* raises.
        spend: Called with the nanoseconds of each call.
    """

    def __init__(
        self, work: Callable[..., None], fail: Callable[[Exception], None], spend: Callable[[int], object] | None = None
    ) -> None:
        import torch

        self._work, self._fail, self._is_compiling, self._spend = work, fail, torch.compiler.is_compiling, spend

    def __call__(self, *given: Any) -> None:
        """Call *work*, and report what it raises."""
        if self._is_compiling():
            return
        begun = monotonic_ns()
        try:
            self._work(*given)
        except Exception as error:  # noqa: BLE001  whatever of PyTorch's has failed, training must go on
            self._fail(error)
        if self._spend is not None:
            self._spend(monotonic_ns() - begun)

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


NODES = 8  # number of tensors in the output of a forward, the first ones, whose gradients are awaited
DEPTH = 3  # depth to which nested outputs are searched for tensors


def gradient_nodes(output: Any) -> list[Any]:
    """Return the autograd nodes of the first tensors in *output*, each once."""
    nodes: list[Any] = []
    _search(output, nodes, DEPTH)
    return list(dict.fromkeys(nodes))


def _search(output: Any, nodes: list[Any], depth: int) -> None:
    if output is None or len(nodes) >= NODES:
        return
    node = getattr(output, "grad_fn", None)
    if node is not None:
        nodes.append(node)
    elif depth and type(output).__module__ != "torch":  # not into a tensor without a gradient
        for part in _parts(output):
            _search(part, nodes, depth - 1)


def _parts(output: Any) -> list[Any]:
    """Return the elements of a collection or the fields of a data class; of anything else none."""
    if isinstance(output, (tuple, list)):
        return list(output[:NODES])
    if hasattr(output, "values") and hasattr(output, "keys"):
        return list(output.values())
    return list(vars(output).values()) if hasattr(output, "__dataclass_fields__") else []
