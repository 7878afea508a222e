"""Count values in bins of equal width, as JSON."""

from __future__ import annotations

import json
import sys
from itertools import islice
from math import isfinite
from typing import Any

from trackside.media.pixels import host_array

BINS = 64
VALUES = 1_000_000  # of more values each second, third, … is counted


def histogram_json(values: Any) -> bytes:
    """Return the distribution of numbers as JSON: ``{"edges": [...], "counts": [...], "nonfinite": N}``.

    Args:
        values: An array, a tensor, which is waited for, or numbers.

    Raises:
        ValueError: There is no finite number. The methods of *values* may raise anything else.
    """
    if hasattr(values, "detach"):
        values = host_array(values)
    if hasattr(values, "astype"):
        edges, counts, nonfinite = _of_array(values)
    else:
        edges, counts, nonfinite = _of_numbers([float(value) for value in islice(values, VALUES)])
    return json.dumps({"edges": edges, "counts": counts, "nonfinite": nonfinite}).encode()


def _of_array(array: Any) -> tuple[list[float], list[int], int]:
    numpy = sys.modules["numpy"]
    flat = array.reshape(-1)
    flat = flat[:: max(1, -(-flat.size // VALUES))].astype("float64")
    finite = flat[numpy.isfinite(flat)]
    if not finite.size:
        raise ValueError("it has no finite number")
    counts, edges = numpy.histogram(finite, BINS)
    return edges.tolist(), counts.tolist(), int(flat.size - finite.size)


def _of_numbers(values: list[float]) -> tuple[list[float], list[int], int]:
    finite = [value for value in values if isfinite(value)]
    if not finite:
        raise ValueError("it has no finite number")
    low, high = min(finite), max(finite)
    if low == high:
        low, high = low - 0.5, high + 0.5
    width = (high - low) / BINS
    counts = [0] * BINS
    for value in finite:
        counts[min(BINS - 1, int((value - low) / width))] += 1
    return [low + place * width for place in range(BINS)] + [high], counts, len(values) - len(finite)
