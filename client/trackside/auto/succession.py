"""Decide whether another optimizer than the first belongs to the training, or begins the next one of this process.

In: optimizers as they are made and step. Out: the steps of the next training, once it is one.

An optimizer is of the same training if it shares parameters, or an outermost module, with the first. Otherwise its steps wait
until it has made some while the first makes none: a GAN's optimizers take turns, trainings follow each other.
"""

from __future__ import annotations

import atexit
import sys
import weakref
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from trackside.auto.models import Models

MADE_LATER, MADE_BEFORE = 3, 10
"""Steps alone that show another training, of an optimizer that was made after the first had stepped, or before."""


class Succession:
    """The optimizers of the present training, and one that may begin the next.

    Args:
        models: The outermost modules.
        flush: Called at the end of the process while steps wait.

    Attributes:
        waiting: The steps of the other optimizer: monotonic nanoseconds and values.
        waits_since: How many steps all optimizers had made with the first of these.
    """

    def __init__(self, models: Models, flush: Callable[[], object]) -> None:
        self.waiting: list[tuple[int, dict[str, Any]]] = []
        self._models = models
        self._flush = flush
        self._made: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._before: weakref.WeakSet[Any] = weakref.WeakSet()
        self._other: Callable[[], Any] = _nothing
        self._began = self.waits_since = self._accompanied = 0
        self._parameters: dict[int, Any] = {}
        self._modules: weakref.WeakSet[Any] = weakref.WeakSet()
        self._trains_model = self._is_one = False

    def made(self, optimizer: Any, steps: int) -> None:
        """Note a new optimizer, and how many steps all others had made."""
        self._made[optimizer] = steps

    def begins(self, optimizer: Any, steps: int) -> None:
        """Note that a training begins with this step of an optimizer; None for one that is gone."""
        self._began, self._parameters, self._modules = steps, {}, weakref.WeakSet()
        if optimizer is not None:
            self._before.add(optimizer)
            self._modules = weakref.WeakSet(self._models.of(optimizer))
            self._parameters = {id(one): weakref.ref(one) for one in _parameters(optimizer)}
            self._trains_model = _trains_model(optimizer)

    def may_follow(self, optimizer: Any) -> bool:
        """Return whether an optimizer has nothing in common with the present training."""
        if self._is_one:
            return False
        if optimizer is self._other():
            return True
        if optimizer in self._before:  # of an earlier training, so that they take turns
            self._is_one = True
            return False
        if not (self._trains_model and _trains_model(optimizer)):  # but an adversarial input, say
            return False
        known = self._parameters
        if any((one := known.get(id(parameter))) and one() is parameter for parameter in _parameters(optimizer)):
            return False
        return not any(module in self._modules for module in self._models.of(optimizer))

    def waits(self, optimizer: Any, values: dict[str, Any], steps: int) -> int:
        """Let a step of an optimizer that may follow wait, and return how many are missing until it does."""
        if not self.waiting:
            self._other, self.waits_since, self._accompanied = weakref.ref(optimizer), steps, 0
            atexit.register(self._flush)
        self.waiting.append((monotonic_ns(), values))
        return (MADE_LATER if self.is_later else MADE_BEFORE) - len(self.waiting)

    @property
    def other(self) -> Any:
        """The optimizer whose steps wait; None without one, and if it is gone."""
        return self._other()

    @property
    def is_later(self) -> bool:
        """The optimizer whose steps wait was made after the present training had begun, or is gone."""
        other = self._other()
        return other is None or self._made.get(other, 0) >= self._began

    def is_third(self, optimizer: Any) -> bool:
        """Return whether an optimizer was made after the first step that waits, which is another's."""
        return bool(self.waiting) and self._made.get(optimizer, 0) >= self.waits_since

    def accompanies(self, optimizer: Any) -> bool:
        """Return whether an optimizer may take turns with the one that waits, as those of a second GAN, for a few steps."""
        is_new = self.is_later and self._made.get(optimizer, 0) >= self._began and not self.is_third(optimizer)
        self._accompanied += is_new
        return is_new and self._accompanied <= MADE_BEFORE

    def taken(self) -> list[tuple[int, dict[str, Any]]]:
        """Return the steps that wait, which wait no longer."""
        waiting, self.waiting, self._other = self.waiting, [], _nothing
        if waiting:  # a GAN has none, in each of its steps
            atexit.unregister(self._flush)
        return waiting


def _nothing() -> None:
    """Stand for a weak reference whose object has gone."""


def _parameters(optimizer: Any) -> list[Any]:
    return [one for group in optimizer.param_groups for one in group["params"]]


def _trains_model(optimizer: Any) -> bool:
    kind = sys.modules["torch"].nn.Parameter
    return any(isinstance(one, kind) for one in _parameters(optimizer))
