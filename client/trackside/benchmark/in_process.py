"""Measure in this process: what a request asks for, or what a notebook has."""

from __future__ import annotations

import copy
import sys
from typing import TYPE_CHECKING, Any

from trackside.benchmark.messages import Failure, Finding
from trackside.benchmark.results import Measured, publish, results, sentence
from trackside.benchmark.rounds import Function, measure, reason, timed
from trackside.benchmark.targets import alone, build

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trackside.benchmark.messages import Load, Request


def findings(request: Request) -> Iterator[Finding]:
    """Do the work of a request."""
    if request.specs[0].is_endpoint:
        from trackside.benchmark.endpoint import Endpoint

        endpoints = {spec.name: Endpoint(spec.target, request.requests).begin for spec in request.specs}
        yield from measure(endpoints, request.loads, request.seconds)
        return
    targets = {}
    for spec in request.specs:
        try:
            if request.mode == "alone":
                yield Finding(facts={spec.name: alone(spec, request.loads[0], request.device)})
            else:
                targets[spec.name] = build(spec, request.device)
        except (Exception, SystemExit) as error:  # noqa: BLE001  the user's code may raise anything
            yield Finding(failed=Failure(spec.name, None, reason(error)))
    is_compared = request.mode == "compare" and request.specs[0].name in targets
    yield from _findings(targets, request.loads, request.seconds, is_compared=is_compared)


def benchmark(
    run: Any, model: Any, inputs: Any, loads: Sequence[Load], *, variants: Sequence[str], seconds: float
) -> dict[str, Any]:
    """See `trackside.Run.benchmark`."""
    targets = dict(_variants(model, inputs, variants))
    measured, ended = Measured(list(targets)), ""
    measured.begin()
    try:
        measured.add(Finding(facts={name: target.facts() for name, target in targets.items()}))
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
) -> Iterator[Finding]:
    if is_compared and len(targets) > 1 and not any(type(one) is Function for one in targets.values()):
        from trackside.benchmark.agreement import agreements

        yield from agreements(targets, max(load.length for load in loads))
    yield from measure({name: timed(target.prepare) for name, target in targets.items()}, loads, seconds)


def _variants(model: Any, inputs: Any, variants: Sequence[str]) -> Iterator[tuple[str, Any]]:
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(model, torch.nn.Module):
        if variants:
            raise TypeError(f"variants are those of a torch module, not of a {type(model).__name__}")
        yield "original", Function(model, inputs)
        return
    from trackside.benchmark.torch_model import Model

    for variant in variants or ("",):
        # A variant changes the model, and the training goes on with it.
        yield variant or "original", Model(copy.deepcopy(model), inputs, variant, str(next(model.parameters()).device))
