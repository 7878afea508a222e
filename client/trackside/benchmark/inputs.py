"""Inputs of what is measured, as the user gives them."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from trackside.benchmark.rounds import Load

SEED = 0  # so that a factory returns the same weights for each variant, and inputs are the same


def arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return inputs as arguments: a mapping by name, a tuple or list by place, None for none, all else as a single one."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    if isinstance(inputs, tuple | list):
        return tuple(inputs), {}
    return (() if inputs is None else (inputs,)), {}


def made_inputs(inputs: Callable[..., Any], load: Load) -> Any:
    """Return what a function of the user's makes for a load: ``inputs()``, ``inputs(batch)`` or ``inputs(batch, length)``."""
    return inputs(*(max(1, load.batch), load.length)[: len(signature(inputs).parameters)])
