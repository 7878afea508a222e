"""Measure in this process what a request asks for, by what `MODULE:FACTORY` returns, or what a notebook has."""

from __future__ import annotations

import copy
import importlib
import random
import sys
from contextlib import suppress
from inspect import signature
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from trackside.benchmark.messages import Failure, ProcessAnswer
from trackside.benchmark.results import Measurements, publish, results, sentence
from trackside.benchmark.rounds import Function, TargetError, measure, reason, timed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from trackside.benchmark.messages import Load, ProcessRequest, Spec


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
        from trackside.benchmark.torch_model import EvaluatedModel

        return EvaluatedModel(model, inputs, variant, device)
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


def findings(request: ProcessRequest) -> Iterator[ProcessAnswer]:
    """Do the work of a request."""
    if request.specs[0].is_endpoint:
        from trackside.benchmark.endpoint import ModelEndpoint

        endpoints = {spec.name: ModelEndpoint(spec.target, request.requests).begin for spec in request.specs}
        yield from measure(endpoints, request.loads, request.seconds)
        return
    targets = {}
    for spec in request.specs:
        try:
            if request.mode == "alone":
                yield ProcessAnswer(facts={spec.name: alone(spec, request.loads[0], request.device)})
            else:
                targets[spec.name] = build(spec, request.device)
        except (Exception, SystemExit) as error:  # noqa: BLE001  the user's code may raise anything
            yield ProcessAnswer(failed=Failure(spec.name, None, reason(error)))
    is_compared = request.mode == "compare" and request.specs[0].name in targets
    yield from _findings(targets, request.loads, request.seconds, is_compared=is_compared)


def benchmark(
    run: Any, model: Any, inputs: Any, loads: Sequence[Load], *, variants: Sequence[str], seconds: float
) -> dict[str, Any]:
    """See `trackside.Run.benchmark`."""
    targets = dict(_variants(model, inputs, variants))
    measured, ended = Measurements(list(targets)), ""
    measured.begin()
    try:
        measured.add(ProcessAnswer(facts={name: target.facts() for name, target in targets.items()}))
        for finding in _findings(targets, loads, seconds):
            measured.add(finding)
    except KeyboardInterrupt:
        ended = "cancelled"
    contents: dict[str, Any] = {**results(measured), "ended": ended}
    contents["sentences"] = [sentence(one) for one in contents["comparisons"]]
    publish(run, contents)
    return contents


def _findings(
    targets: Mapping[str, Any], loads: Sequence[Load], seconds: float, *, is_compared: bool = True
) -> Iterator[ProcessAnswer]:
    if is_compared and len(targets) > 1 and not any(type(one) is Function for one in targets.values()):
        from trackside.benchmark.torch_model import agreements

        yield from agreements(targets, max(load.length for load in loads))
    yield from measure({name: timed(target.prepare) for name, target in targets.items()}, loads, seconds)


def _variants(model: Any, inputs: Any, variants: Sequence[str]) -> Iterator[tuple[str, Any]]:
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(model, torch.nn.Module):
        if variants:
            raise TypeError(f"variants are those of a torch module, not of a {type(model).__name__}")
        yield "original", Function(model, inputs)
        return
    from trackside.benchmark.torch_model import EvaluatedModel

    for variant in variants or ("",):
        # A variant changes the model, and the training goes on with it.
        yield (
            variant or "original",
            EvaluatedModel(copy.deepcopy(model), inputs, variant, str(next(model.parameters()).device)),
        )
