"""Turn the hooks of a training on and off between steps, and time them."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

from trackside.pytorch.hooks import ModuleHook
from trackside.pytorch.watcher import Watcher
from trackside.totals.phases import _TimedIterator

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import nn


SEEN = 4
"""Of so many steps one is tested, and the others are in null pairs or the other arm."""


def seen_seldom(watcher: Watcher) -> None:
    """Adapt the pacing to hooks that see only every fourth step: otherwise they would measure four times too often."""
    stages = watcher._stages
    assert stages is not None
    for budget in (watcher._gradients, watcher._weights, stages._sampler._budget):
        budget._share /= SEEN


class Switch:
    """A switch for all hooks of a model, of its parameters and of its optimizer."""

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
        """Remove the hooks."""
        self._kept = [dict(place() or {}) for place in self._places]
        for place in self._places:
            if place():
                place().clear()

    def on(self) -> None:
        """Register the hooks."""
        for place, kept in zip(self._places, self._kept, strict=True):
            if kept:
                place().update(kept)


class Calls:
    """Time in our calls, without the training's own functions that they call.

    Attributes:
        spent: Seconds so far.

    """

    def __init__(self) -> None:
        self.spent = 0.0
        self._within: list[float] = []
        """Seconds in calls from within each that is under way."""

    def timed(self, function: Callable[..., Any], *, ours: bool = True) -> Callable[..., Any]:
        """Return a timed function; if it is not *ours*, its time is excluded."""

        def called(*given: Any, **named: Any) -> Any:
            begun = perf_counter()
            self._within.append(0.0)
            try:
                return function(*given, **named)
            finally:
                took, within = perf_counter() - begun, self._within.pop()
                if self._within:
                    self._within[-1] += took
                self.spent += took - within if ours else 0.0

        return called

    def time(self, kind: type, *names: str) -> None:
        """Time methods of a class."""
        for name in names:
            setattr(kind, name, self.timed(getattr(kind, name)))

    def time_watching(self) -> None:
        """Time the hooks that watch a model, and the waits for batches."""
        self.time(ModuleHook, "__call__")
        self.time(Watcher, "_pre_hook", "_post_hook")
        begin, timed = _TimedIterator.__init__, self.timed

        def begun(waits: Any, report: Any, batches: Any, *given: Any) -> None:
            begin(waits, report, Asked(timed(batches.__next__, ours=False)), *given)

        setattr(_TimedIterator, "__init__", begun)  # noqa: B010  mypy takes no assignment
        self.time(_TimedIterator, "__next__")

    def led(self, way: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method's wrapper, timed without the method itself."""
        return self.timed(lambda method, *given, **named: way(self.timed(method, ours=False), *given, **named))


class Asked:
    """An iterator over the results of a function."""

    def __init__(self, ask: Callable[[], Any]) -> None:
        self._ask = ask

    def __iter__(self) -> Asked:
        return self

    def __next__(self) -> Any:
        return self._ask()
