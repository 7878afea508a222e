"""Measure in this process, for notebooks."""

from __future__ import annotations

import copy
import sys
from typing import TYPE_CHECKING, Any

from trackside.benchmark.publishing import publish
from trackside.benchmark.results import Measured, results, sentence
from trackside.benchmark.rounds import Calls, Load, Plan, measure
from trackside.benchmark.target import Function

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trackside.benchmark.publishing import Receiver

ROWS, TOKENS = 32, 8  # inputs whose outputs are compared, and tokens to generate for that


def benchmark(
    run: Receiver, model: Any, inputs: Any, loads: Sequence[Load], *, variants: Sequence[str], plan: Plan
) -> dict[str, Any]:
    """See `trackside.Run.benchmark`."""
    targets = dict(_targets(model, inputs, variants))
    measured, ended = Measured(list(targets)), ""
    measured.begin()
    try:
        measured.facts = {name: target.facts() for name, target in targets.items()}
        if len(targets) > 1:
            _compare(measured, targets, max(load.length for load in loads))
        measure([Calls(name, target.prepare) for name, target in targets.items()], loads, plan, measured, lambda: False)
    except KeyboardInterrupt:
        ended = "cancelled"
    contents: dict[str, Any] = {**results(measured), "notes": measured.notes, "ended": ended}
    contents["sentences"] = [sentence(one) for one in contents["comparisons"]]
    publish(run, contents)
    return contents


def _targets(model: Any, inputs: Any, variants: Sequence[str]) -> Iterator[tuple[str, Any]]:
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


def _compare(measured: Measured, models: dict[str, Any], length: int) -> None:
    from trackside.benchmark.agreement import agreements

    for name, found in agreements(models, ROWS, length, TOKENS):
        if isinstance(found, str):
            measured.notes.append(f"{name}: its outputs cannot be compared: {found}")
        else:
            measured.agreement[name] = {measure: one._asdict() for measure, one in found.items()}
