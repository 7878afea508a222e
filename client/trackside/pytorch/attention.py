"""Measure attention where PyTorch computes it: the entropy of each head, and its largest logit.

While a chosen module runs its forward pass, the operators below autograd are watched: scaled dot-product attention in all
its variants, and softmax over attention scores. From a sample of the queries the attention is computed once more. Kernels
that PyTorch does not know as attention, such as those of the package flash-attn, and compiled code are not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from trackside.packing import pack
from trackside.wire import LAYER_NAMES, DistributionFrame

SEQUENCES, QUERIES = 2, 32  # sampled of a batch, and of each of its sequences
MIN_KEYS = 8  # queries that see fewer keys are left out
MASKED = -1e4  # lower logits are masked
OPERATOR_SECONDS = 8e-6  # estimated cost of watching an operator


class AttentionWatch(TorchDispatchMode):  # type: ignore[misc]
    """Watches the operators of one forward pass of a module.

    Args:
        found: Called with entropies and largest logits by head, as tensors.
        heads: Number of heads, for softmax over scores of three dimensions; 0 if it is unknown.

    Attributes:
        seconds: Cost so far.
    """

    def __init__(self, found: Callable[[Any, Any], None], heads: int = 0) -> None:
        super().__init__()
        self.seconds = 0.0
        self._found = found
        self._heads = heads

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        """Run an operator, and measure it if it computes attention."""
        result = func(*args, **(kwargs or {}))
        self.seconds += OPERATOR_SECONDS
        name = func._schema.name  # noqa: SLF001  the public way to it is to parse its text
        if name.startswith("aten::_scaled_dot_product_") and not name.endswith("_backward"):
            names = [argument.name for argument in func._schema.arguments]  # noqa: SLF001  the same
            self._measure(lambda: _scores(dict(zip(names, args, strict=False)) | (kwargs or {})))
        elif name in ("aten::_softmax", "aten::_safe_softmax") and args[1] in (-1, args[0].dim() - 1):
            self._measure(lambda: self._sampled(args[0]))
        return result

    def _measure(self, scores: Callable[[], Any]) -> None:
        began = perf_counter()
        logits = scores()
        if logits is not None:
            self._found(*_statistics(logits.float()))
        self.seconds += perf_counter() - began

    def _sampled(self, logits: Any) -> Any:
        """Return a sample of attention scores of the shape batch, heads, queries, keys; None for other scores."""
        if logits.dim() == 3 and self._heads and logits.shape[0] % self._heads == 0:
            logits = logits.unflatten(0, (-1, self._heads))
        return _rows(logits) if logits.dim() == 4 and logits.shape[-1] >= MIN_KEYS else None


def _rows(tensor: Any) -> Any:
    """Return the sampled sequences and queries."""
    return tensor[:SEQUENCES, :, :: -(-tensor.shape[2] // QUERIES)]


def _scores(call: Mapping[str, Any]) -> Any:
    """Return the logits of the sampled queries from the arguments of scaled dot-product attention."""
    query, key = call["query"], call["key"]
    if query.dim() != 4 or key.shape[2] < MIN_KEYS or type(query) not in (torch.Tensor, torch.nn.Parameter):
        return None
    rows, key = _rows(query), key[:SEQUENCES]
    if key.shape[1] != query.shape[1]:  # several heads share their keys
        key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    scale = call.get("scale")
    logits = (rows @ key.transpose(2, 3)).float() * (query.shape[3] ** -0.5 if scale is None else scale)
    mask = call.get("attn_mask", call.get("attn_bias"))
    if mask is not None:
        mask = _rows(mask.expand(*query.shape[:3], key.shape[2]))
        logits = logits.masked_fill(~mask, MASKED * 2) if mask.dtype == torch.bool else logits + mask
    if call.get("is_causal"):
        places = torch.arange(query.shape[2], device=query.device)
        later = places[:: -(-len(places) // QUERIES), None] < torch.arange(key.shape[2], device=query.device)
        logits = logits.masked_fill(later, MASKED * 2)
    return logits


def _statistics(logits: Any) -> tuple[Any, Any]:
    """Return entropies, as shares of that of equal attention to all visible keys, and largest logits, by head."""
    visible = logits > MASKED
    shares = torch.softmax(logits, -1)
    entropies = -torch.special.xlogy(shares, shares).sum(-1)
    keys = visible.sum(-1)
    counts = keys >= MIN_KEYS
    ratios = entropies / keys.clamp(min=2).log()
    largest = logits.masked_fill(~visible, 0.0).abs().amax((0, 2, 3))
    return (ratios * counts).sum((0, 2)) / counts.sum((0, 2)), largest


class Heads:
    """The attention of the heads of several layers at one step."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[Any, Any]] = {}

    def __bool__(self) -> bool:
        """Return whether attention was found."""
        return bool(self._found)

    def add(self, layer: str, entropies: Any, logits: Any) -> None:
        """Add the heads of a layer; of several passes in one step, the last counts."""
        self._found[layer] = entropies, logits

    def tensors(self) -> list[Any]:
        """Return all that `frame` reads, as tensors on the device."""
        return [torch.cat([pair[column] for pair in self._found.values()]) for column in (0, 1)]

    def frame(self, kind: str, time: int, tensors: Sequence[Any]) -> DistributionFrame:
        """Return the heads as they are sent; see `Histograms.frame`."""
        names = [f"{layer}/{head}" for layer, (one, _) in self._found.items() for head in range(len(one))][:LAYER_NAMES]
        columns = zip(("entropy", "logit"), tensors, strict=True)
        return DistributionFrame(
            kind, time, names, {name: pack("f", one.tolist()[:LAYER_NAMES]) for name, one in columns}
        )
