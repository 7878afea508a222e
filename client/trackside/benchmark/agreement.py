"""Compare the outputs of variants with those of the reference, on the same inputs, with intervals over the inputs."""

from __future__ import annotations

from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from trackside.benchmark.intervals import LEAST_PARTS, Interval, mean
from trackside.benchmark.messages import Finding, Load
from trackside.benchmark.rounds import arguments, reason
from trackside.benchmark.torch_model import mapped, tensors
from trackside.distributions import proportion_interval

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trackside.benchmark.torch_model import Model

ROWS, BATCH = 64, 4  # inputs, and those of a call
FEWEST = 59  # inputs of which 95 % of all stay below the largest with 95 % confidence (Wilks 1941)


def outputs(model: Model, inputs: Any) -> list[torch.Tensor]:
    """Return the outputs of a model for each row of its inputs."""
    found: list[torch.Tensor] = []
    placed = model.placed(inputs)
    rows = max((len(tensor) for tensor in tensors(placed) if tensor.dim()), default=1)
    for begin in range(0, rows, BATCH):
        args, kwargs = arguments(mapped(placed, partial(_rows, rows, begin)))
        found.extend(_tensor(model(*args, **kwargs)).float())
    return found


def agreements(models: Mapping[str, Model], length: int, rows: int = ROWS) -> Iterator[Finding]:
    """Yield the `agreement` of each model with the first one, or in one line why it has none."""
    reference: list[torch.Tensor] | None = None
    inputs: Any = None
    for name, model in models.items():
        try:
            if reference is None:
                inputs = model.made(Load(rows, length)) if callable(model.inputs) else model.inputs
            own = outputs(model, inputs)
            if reference is not None:
                found = agreement(reference, own)
                yield Finding(agreement={name: {measure: one._asdict() for measure, one in found.items()}})
            reference = reference or own
        except (Exception, SystemExit) as error:  # noqa: BLE001  the user's code may raise anything
            yield Finding(note=f"{name}: its outputs cannot be compared: {reason(error)}")
            if reference is None:
                return


def agreement(reference: Sequence[torch.Tensor], variant: Sequence[torch.Tensor]) -> dict[str, Interval]:
    """Return by measure how the outputs of a variant agree with the reference.

    ``largest_difference`` of all outputs, whose upper end covers 95 % of such inputs if there are 59 or more; ``cosine``,
    the mean cosine similarity of an input's output; and if the outputs are logits, ``top1``, the share of equal first
    places; ``kl``, the Kullback-Leibler divergence from the reference in nats.
    """
    pairs = list(zip(reference, variant, strict=True))
    found = {
        "largest_difference": _largest([float((one - other).abs().max()) for one, other in pairs]),
        "cosine": _mean(
            [float(functional.cosine_similarity(one.flatten(), other.flatten(), 0)) for one, other in pairs]
        ),
    }
    if pairs[0][0].dim() and pairs[0][0].shape[-1] > 1:
        found["top1"] = _share([float((one.argmax(-1) == other.argmax(-1)).float().mean()) for one, other in pairs])
        found["kl"] = _mean([_divergence(one, other) for one, other in pairs])
    return found


def _divergence(one: torch.Tensor, other: torch.Tensor) -> float:
    own, theirs = functional.log_softmax(one, -1), functional.log_softmax(other, -1)
    return max(0.0, float((own.exp() * (own - theirs)).sum(-1).mean()))


def _rows(rows: int, begin: int, tensor: torch.Tensor) -> torch.Tensor:
    """Return the next rows of a tensor that has one for each input."""
    return tensor[begin : begin + BATCH] if tensor.dim() and len(tensor) == rows else tensor


def _tensor(output: Any) -> torch.Tensor:
    """Return the logits of an output, or else its first tensor."""
    if isinstance(output, torch.Tensor):
        return output
    named = getattr(output, "logits", None)
    if isinstance(named, torch.Tensor):
        return named
    parts = output.values() if hasattr(output, "values") else output
    return next(part for part in parts if isinstance(part, torch.Tensor))


def _mean(values: Sequence[float]) -> Interval:
    return mean(fmean(values), values, f"{len(values)} of {LEAST_PARTS} inputs")


def _share(values: Sequence[float]) -> Interval:
    """Return a mean share: exact for inputs that agree as a whole or not at all, else by what differs between them."""
    if all(value in {0.0, 1.0} for value in values):
        return Interval(fmean(values), *proportion_interval(round(sum(values)), len(values)))
    return mean(fmean(values), values, f"{len(values)} of {LEAST_PARTS} inputs", 0.0, 1.0)


def _largest(values: Sequence[float]) -> Interval:
    if len(values) < FEWEST:
        return Interval(max(values), None, None, f"{len(values)} of {FEWEST} inputs")
    return Interval(max(values), min(values), max(values))
