"""Distributions of layers for tests, as the client sends them."""

from __future__ import annotations

import random
from math import frexp, sqrt
from typing import TYPE_CHECKING

from trackside.buckets import FIRST, LOWEST, SIDE, Buckets
from trackside.packing import pack
from trackside.wire import DistributionFrame

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def buckets_of(values: Sequence[float]) -> Buckets:
    """Return the distribution of finite values whose magnitudes are no powers of two."""
    counts: dict[int, int] = {}
    for value in values:
        if value:
            code = frexp(abs(value))[1] - LOWEST + FIRST + SIDE * (value < 0)
            counts[code] = counts.get(code, 0) + 1
    return Buckets(sum(not value for value in values), 0, dict(sorted(counts.items())))


def frame(
    step: int, layers: Mapping[str, Sequence[float]], kind: str = "weights", **columns: float
) -> DistributionFrame:
    """Return the distributions of values by layer at a step; *columns* replaces values of columns."""
    rows = [column_values(values) | columns for values in layers.values()]
    packed = {name: pack("f", [row[name] for row in rows]) for name in rows[0]}
    buckets = [buckets_of(values).packed() for values in layers.values()]
    return DistributionFrame(kind, (50 + step) * 10**9, list(layers), packed, buckets, step)


def attention(step: int, heads: Mapping[str, tuple[float, float]]) -> DistributionFrame:
    """Return entropy and largest logit by head at a step."""
    entropy, logit = (pack("f", [pair[place] for pair in heads.values()]) for place in (0, 1))
    return DistributionFrame(
        "attention", (50 + step) * 10**9, list(heads), {"entropy": entropy, "logit": logit}, step=step
    )


def column_values(values: Sequence[float]) -> dict[str, float]:
    """Return the columns of some values."""
    size, mean = len(values), sum(values) / len(values)
    squares = sum(value * value for value in values)
    return {
        "size": size,
        "mean": mean,
        "std": sqrt(max(0.0, squares / size - mean * mean)),
        "norm": sqrt(squares),
        "largest": max(map(abs, values)),
        "zeros": values.count(0.0) / size if isinstance(values, list) else 0.0,
        "nonfinite": 0.0,
    }


def normal(seed: int, size: int = 100, scale: float = 1.0) -> list[float]:
    """Return random values."""
    generator = random.Random(seed)
    return [generator.gauss(0.0, scale) for _ in range(size)]
