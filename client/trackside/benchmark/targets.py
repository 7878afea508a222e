"""Targets: what `MODULE:FACTORY` returns, as functions to call for each load."""

from __future__ import annotations

import importlib
import random
import sys
from contextlib import suppress
from inspect import signature
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from trackside.benchmark.rounds import Function, TargetError

if TYPE_CHECKING:
    from collections.abc import Callable

    from trackside.benchmark.messages import Load, Spec

SEED = 0  # so that a factory returns the same weights and the same inputs for each variant


def build(spec: Spec, device: str = "") -> Function:
    """Return the target of a variant.

    Raises:
        TargetError: There is nothing to measure. The user's code may raise anything else.
    """
    factory = _factory(spec.target)
    given = {"variant": spec.variant, "checkpoint": spec.checkpoint}
    taken = {name: value for name, value in given.items() if value and name in signature(factory).parameters}
    if spec.checkpoint and "checkpoint" not in taken:
        raise TargetError(f"--checkpoint needs a factory with a parameter checkpoint; {spec.target} has none")
    was_loaded, made = _seed(), factory(**taken)
    if _seed() and not was_loaded:
        made = factory(**taken)  # the first one has imported PyTorch, whose seed was another
    model, inputs = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    variant = "" if "variant" in taken else spec.variant
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        from trackside.benchmark.torch_model import Model

        return Model(model, inputs, variant, device)
    if not callable(model):
        raise TargetError(
            f"{spec.target} returned {type(model).__name__}; return a function, a torch module, or (either, inputs)"
        )
    if variant:
        raise TargetError(f"{spec.target} returned a function, so its factory needs a parameter variant for {variant}")
    return Function(model, inputs)


def alone(spec: Spec, load: Load, device: str = "") -> dict[str, float]:
    """Return the facts of a variant that this process has not loaded yet, by measure: times in seconds, sizes in bytes."""
    _factory(spec.target)  # to import its packages is no part of the load
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # begins a new peak
    before, begun = _peak_memory(), perf_counter()
    target = build(spec, device)
    loaded = perf_counter()
    call = target.prepare(load)
    prepared = perf_counter()
    call()
    first = perf_counter() - prepared
    memory = {"memory_bytes": _peak_memory() - before} if before else {}
    return {"load_seconds": loaded - begun, "first_call_seconds": first, **memory, **target.facts()}


def _peak_memory() -> float:
    """Return the most bytes that this process had in memory; 0 on systems without /proc."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return float(line.split()[1]) * 1024
    return 0.0


def _factory(target: str) -> Callable[..., Any]:
    module, _, attribute = target.partition(":")
    if not module or not attribute:
        raise TargetError(f"{target}: write MODULE:FACTORY, or the address of an endpoint")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and not f"{module}.".startswith(f"{error.name}."):
            raise
        raise TargetError(
            f"{target}: no module {module} in {Path.cwd()} or the environment of {sys.executable}"
        ) from None
    factory: Callable[..., Any] | None = getattr(found, attribute, None)
    if not callable(factory):
        raise TargetError(f"{target}: module {module} has no function {attribute} that returns what to measure")
    return factory


def _seed() -> bool:
    """Seed Python and, if it is loaded, PyTorch; return whether it is."""
    random.seed(SEED)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(SEED)
    return torch is not None
