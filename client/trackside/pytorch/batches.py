"""Count the samples and tokens of a batch by the shapes of its tensors, which are known without waiting for a device."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

PARTS = 8  # number of parts of a batch that are searched for a tensor, whose length is the number of samples
DEPTH = 3  # depth to which nested parts are searched


def counts(batch: Any) -> tuple[int, int]:
    """Return the samples and the tokens of a batch."""
    # The usual case: each step would miss the CPU caches for the general one.
    if type(batch) is list and batch and type(batch[0]).__name__ == "Tensor" and (shape := batch[0].shape):
        return shape[0], 0
    return samples(batch), tokens(batch)


def samples(batch: Any, depth: int = DEPTH) -> int:
    """Return the length of the first tensor in a batch; 0 if there is none among its first parts."""
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else 0
    is_sequence = isinstance(batch, (list, tuple))
    if not depth or not (is_sequence or isinstance(batch, Mapping)):
        return 0
    for part in islice(batch if is_sequence else batch.values(), PARTS):
        if count := samples(part, depth - 1):
            return count
    return 0


def tokens(batch: Any) -> int:
    """Return the number of elements of ``input_ids`` in a batch that is a mapping, as Transformers makes it; else 0."""
    ids = None if isinstance(batch, (list, tuple)) or not isinstance(batch, Mapping) else batch.get("input_ids")
    count = getattr(ids, "numel", None)
    return 0 if count is None else int(count())
