"""Bands over the ranks of a key: the range from the lowest to the highest value, and the median rank."""

from __future__ import annotations

from bisect import bisect_left
from itertools import repeat
from math import isnan
from statistics import median
from typing import TYPE_CHECKING, Any

from trackside_daemon.model.metric import json_number

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trackside_daemon.history.read.series import By

_Points = list[list[Any]]
"""Points ``[step, time, min, max, last]``, as `series.read_charts` returns them."""


def rank_bands(charts: Sequence[dict[str, Any]], by: By) -> list[dict[str, Any]]:
    """Return one band per run, key and attempt, with points ``[step, time, min, max, median]``.

    A band with NaN or infinite samples also has ``nonfinite``: their number in each point, over all ranks. The buckets
    are those of the rank with the most buckets. A bucket of another rank counts in the first bucket that does not end
    before it.

    Args:
        charts: Charts of single ranks from `series.read_charts`.
        by: The axis of the buckets, step or time.
    """
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for chart in charts:
        groups.setdefault((chart["run"], chart["attempt"], chart["key"]), []).append(chart)
    return [
        {
            "run": run,
            "attempt": attempt,
            "key": key,
            "ranks": len(ranks),
            **_band(ranks, 0 if by == "step" else 1),
        }
        for (run, attempt, key), ranks in groups.items()
    ]


def _band(ranks: Sequence[dict[str, Any]], axis: int) -> dict[str, Any]:
    longest: _Points = max((chart["points"] for chart in ranks), key=len)
    ends = [point[axis] for point in longest]
    lows: list[list[float]] = [[] for _ in ends]
    highs: list[list[float]] = [[] for _ in ends]
    lasts: list[dict[int, float]] = [{} for _ in ends]
    nonfinite = [0] * len(ends)
    for number, chart in enumerate(ranks):
        points: _Points = chart["points"]
        for point, count in zip(points, chart.get("nonfinite") or repeat(0), strict=False):
            # A rank that is ahead of the one with the most buckets ends in the last bucket.
            bucket = min(bisect_left(ends, point[axis]), len(ends) - 1)
            lows[bucket].append(float(point[2]))
            highs[bucket].append(float(point[3]))
            lasts[bucket][number] = float(point[4])
            nonfinite[bucket] += count
    band = [
        [
            *point[:2],
            _ignoring_nan(min, low),
            _ignoring_nan(max, high),
            _ignoring_nan(median, list(last.values())),
        ]
        for point, low, high, last in zip(longest, lows, highs, lasts, strict=True)
    ]
    return {"points": band, **({"nonfinite": nonfinite} if any(nonfinite) else {})}


def _ignoring_nan(aggregate: Callable[[list[float]], float], values: Sequence[float]) -> float | str:
    """Return the aggregate of the values that are not NaN as JSON can hold it; NaN when all are."""
    numbers = [value for value in values if not isnan(value)]
    return json_number(float(aggregate(numbers)) if numbers else float("nan"))
