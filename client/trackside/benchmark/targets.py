"""Targets: what `MODULE:FACTORY` returns, or what a path contains, as functions to call for each load."""

from __future__ import annotations

import importlib
import random
import sys
from contextlib import suppress
from inspect import signature
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from trackside.benchmark.rounds import SEED, TargetError, arguments, made_inputs

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from trackside.benchmark.messages import Load, Spec


class Function:
    """A function to measure.

    Args:
        function: The function.
        inputs: Its arguments, see `arguments`.
    """

    def __init__(self, function: Callable[..., object], inputs: Any = None) -> None:
        self._function = function
        self._inputs = inputs

    def prepare(self, load: Load) -> Callable[[], object]:
        """Return the call for a load.

        Raises:
            TargetError: The load needs inputs that are made for it.
        """
        if (load.batch or load.length) and not callable(self._inputs):
            raise TargetError(
                "--batch-size and --length need inputs: return (function, inputs) with a function inputs(batch)"
            )
        args, kwargs = arguments(made_inputs(self._inputs, load) if callable(self._inputs) else self._inputs)
        function = self._function
        return (lambda: function(*args, **kwargs)) if args or kwargs else function

    def facts(self) -> dict[str, float]:
        """Return its sizes: none."""
        return {}


def build(spec: Spec, device: str = "") -> Any:
    """Return the target of a variant, a `Function` or a `trackside.benchmark.torch_model.Model`.

    Raises:
        TargetError: There is nothing to measure. The user's code may raise anything else.
    """
    made, taken = _made(spec)
    variant, checkpoint = ("" if name in taken else getattr(spec, name) for name in ("variant", "checkpoint"))
    model, inputs = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        from trackside.benchmark.torch_model import Model, read_weights

        if checkpoint:
            read_weights(model, Path(checkpoint))
        return Model(model, inputs, variant, device, Path(spec.checkpoint or spec.target))
    if not callable(model):
        raise TargetError(
            f"{spec.target} returned {type(model).__name__}; return a function, a torch module, or (either, inputs)"
        )
    if variant:
        raise TargetError(f"{spec.target} returned a function, so its factory needs a parameter variant for {variant}")
    return Function(model, inputs)


def alone(spec: Spec, load: Load, device: str = "") -> dict[str, float]:
    """Return the facts of a variant that this process has not loaded yet, by measure: times in seconds, sizes in bytes."""
    if ":" in spec.target:
        _factory(spec.target)  # to import its packages is no part of the load
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # begins a new peak
    before, begun = _memory("VmRSS"), perf_counter()
    target = build(spec, device)
    loaded = perf_counter()
    call = target.prepare(load)
    prepared = perf_counter()
    call()
    first = perf_counter() - prepared
    peak = max(0.0, _memory("VmHWM") - before)
    facts = {"load_seconds": loaded - begun, "first_call_seconds": first, "memory_bytes": peak}
    return {**facts, **target.facts()}


def _memory(field: str) -> float:
    """Return bytes of this process by a field of /proc/self/status; on other systems its peak."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(float(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))
    except (OSError, StopIteration):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _made(spec: Spec) -> tuple[Any, Collection[str]]:
    """Return what a factory or a path gives, and the names of what the factory took into account."""
    if ":" not in spec.target:
        if not Path(spec.target).exists():
            raise TargetError(f"{spec.target}: no such file, and no MODULE:FACTORY")
        from trackside.benchmark.torch_model import read_model

        return read_model(Path(spec.target)), ()
    factory = _factory(spec.target)
    parameters: Collection[str] = ()
    with suppress(ValueError):  # a function of an extension
        parameters = signature(factory).parameters
    given = {"variant": spec.variant, "checkpoint": spec.checkpoint}
    named = {name: value for name, value in given.items() if value and name in parameters}
    seeded = _seed()
    made = factory(**named)
    return (made if seeded or not _seed() else factory(**named)), named  # it has imported PyTorch


def _factory(target: str) -> Callable[..., Any]:
    module, _, attribute = target.partition(":")
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
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise TargetError(f"{target}: module {module} has no {attribute}")
        found = getattr(found, name)
    if not callable(found):
        raise TargetError(f"{target} is a {type(found).__name__}; name a function that returns what to measure")
    return found


def _seed() -> bool:
    """Seed Python and, if it is loaded, PyTorch; return whether it is."""
    random.seed(SEED)
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "manual_seed"):
        torch.manual_seed(SEED)
    return torch is not None
