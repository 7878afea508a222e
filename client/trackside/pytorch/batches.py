"""Count the samples and tokens of a batch by the shapes of its tensors, which are known without waiting for a device."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

PARTS = 8  # number of parts of a batch that are searched for a tensor, whose length is the number of samples
DEPTH = 3  # depth to which nested parts are searched


def samples(batch: Any, depth: int = DEPTH) -> int:
    """Return the length of the first tensor in a batch; 0 if there is none among its first parts."""
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else 0
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()
    return next((count for part in islice(parts, PARTS) if depth and (count := samples(part, depth - 1))), 0)


def tokens(batch: Any) -> int:
    """Return the number of elements of ``input_ids`` in a batch that is a mapping, as Transformers makes it; else 0."""
    ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
    count = getattr(ids, "numel", None)
    return 0 if count is None else int(count())
