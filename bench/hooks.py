"""Hooks of a training, which are put on and taken off between its steps, and how long they take."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import nn


class Switch:
    """Puts on and takes off all hooks of a model, of its parameters and of its optimizer."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._places: list[Callable[[], Any]] = [
            lambda: optimizer._optimizer_step_pre_hooks,
            lambda: optimizer._optimizer_step_post_hooks,
            *(lambda one=one: one._forward_pre_hooks for one in model.modules()),
            *(lambda one=one: one._forward_hooks for one in model.modules()),
            *(lambda one=one: one._backward_hooks for one in model.parameters()),
        ]
        self._kept: list[dict[Any, Any]] = []

    def off(self) -> None:
        """Take them off."""
        self._kept = [dict(place() or {}) for place in self._places]
        for place in self._places:
            if place():
                place().clear()

    def on(self) -> None:
        """Put them on."""
        for place, kept in zip(self._places, self._kept, strict=True):
            if kept:
                place().update(kept)


class Calls:
    """Seconds in calls of ours, the innermost of which count with the outermost."""

    def __init__(self) -> None:
        self.spent, self._depth = 0.0, 0

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function."""

        def called(*given: Any, **named: Any) -> Any:
            begun = perf_counter()
            self._depth += 1
            try:
                return function(*given, **named)
            finally:
                self._depth -= 1
                if not self._depth:
                    self.spent += perf_counter() - begun

        return called
