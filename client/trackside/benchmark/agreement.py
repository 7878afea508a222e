"""Compare the outputs of variants with those of the reference, on the same inputs, with intervals over the inputs."""

from __future__ import annotations

from functools import partial
from math import exp
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn import functional

from trackside.benchmark.intervals import LEAST_PARTS, Interval, mean, proportion_interval
from trackside.benchmark.messages import Finding, Load
from trackside.benchmark.rounds import arguments, reason
from trackside.benchmark.torch_model import mapped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from trackside.benchmark.torch_model import Model

ROWS, BATCH = 64, 4  # inputs, and those of a call
TOKENS = 8  # that are generated to compare language models
FEWEST = 59  # inputs of which 95 % of all stay below the largest with 95 % confidence (Wilks 1941)


class Outputs(NamedTuple):
    """The outputs of a model, a row of each input; of a language model also its inputs, and its continuations of them."""

    rows: list[torch.Tensor]
    ids: list[torch.Tensor]
    generated: list[list[int]]


def outputs(model: Model, inputs: Any, rows: int, tokens: int) -> Outputs:
    """Return the outputs of a model for so many inputs, and as many tokens by greedy decoding."""
    found, placed = Outputs([], [], []), model.placed(inputs)
    for begin in range(0, rows, BATCH):
        args, kwargs = arguments(mapped(placed, partial(_rows, rows, begin)))
        logits = _tensor(model(*args, **kwargs))
        found.rows.extend(logits.float())
        ids = next(filter(_is_ids, (*args, *kwargs.values())), None)
        if ids is not None and logits.dim() == 3 and logits.shape[1] == ids.shape[1]:
            found.ids.extend(ids)
            found.generated.extend(_greedy(lambda ids: _tensor(model(ids)), ids, tokens))
    return found


def agreements(models: Mapping[str, Model], length: int, rows: int = ROWS, tokens: int = TOKENS) -> Iterator[Finding]:
    """Yield the `agreement` of each model with the first one, or in one line why it has none."""
    reference: Outputs | None = None
    inputs: Any = None
    for name, model in models.items():
        try:
            inputs = model.made(Load(rows, length)) if reference is None else inputs
            own = outputs(model, inputs, rows, tokens)
            if reference is not None:
                found = agreement(reference, own)
                yield Finding(agreement={name: {measure: one._asdict() for measure, one in found.items()}})
            reference = reference or own
        except (Exception, SystemExit) as error:  # noqa: BLE001  the user's code may raise anything
            yield Finding(note=f"{name}: its outputs cannot be compared: {reason(error)}")
            if reference is None:
                return


def agreement(reference: Outputs, variant: Outputs) -> dict[str, Interval]:
    """Return by measure how the outputs of a variant agree with the reference.

    ``largest_difference`` of all outputs, whose upper end covers 95 % of such inputs if there are 59 or more; ``cosine``, the mean cosine
    similarity of an input's output; and if the outputs are logits, ``top1``, the share of equal first places; ``kl``, the
    Kullback-Leibler divergence from the reference in nats; for language models ``perplexity`` as a ratio to the reference,
    and ``exact_match``, the share of equal continuations by greedy decoding.
    """
    pairs = list(zip(reference.rows, variant.rows, strict=True))
    largest = [float((one - other).abs().max()) for one, other in pairs]
    found = {
        "largest_difference": _largest(largest),
        "cosine": _mean(
            [float(functional.cosine_similarity(one.flatten(), other.flatten(), dim=0)) for one, other in pairs]
        ),
    }
    if pairs[0][0].dim() and pairs[0][0].shape[-1] > 1:
        found["top1"] = _share([float((one.argmax(-1) == other.argmax(-1)).float().mean()) for one, other in pairs])
        found["kl"] = _mean([_divergence(one, other) for one, other in pairs])
    if reference.generated and variant.generated:
        losses = [_loss(other, ids) - _loss(one, ids) for (one, other), ids in zip(pairs, reference.ids, strict=True)]
        found["perplexity"] = _mean(losses).map(exp)
        equal = [one == other for one, other in zip(reference.generated, variant.generated, strict=True)]
        found["exact_match"] = _share([float(one) for one in equal])
    return found


def _divergence(one: torch.Tensor, other: torch.Tensor) -> float:
    own, theirs = functional.log_softmax(one, -1), functional.log_softmax(other, -1)
    return max(0.0, float((own.exp() * (own - theirs)).sum(-1).mean()))


def _loss(logits: torch.Tensor, ids: torch.Tensor) -> float:
    return float(functional.cross_entropy(logits[:-1], ids[1:]))


def _greedy(logits: Callable[[torch.Tensor], torch.Tensor], ids: torch.Tensor, tokens: int) -> list[list[int]]:
    """Return the continuation of each row, without a cache, since models have caches of many kinds."""
    begun = ids.shape[1]
    for _ in range(tokens):
        ids = torch.cat((ids, logits(ids)[:, -1].argmax(-1, keepdim=True)), 1)
    return [list(map(int, row)) for row in ids[:, begun:]]


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


def _is_ids(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in {torch.int64, torch.int32} and value.dim() == 2


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
