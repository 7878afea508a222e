"""All ranks of a key as one band: between the lowest and the highest, and in its middle the median rank."""

from __future__ import annotations

from bisect import bisect_left
from itertools import repeat
from math import isnan
from statistics import median
from typing import TYPE_CHECKING, Any

from trackside_daemon.model.metric import json_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trackside_daemon.history.read.series import By

_Points = list[list[Any]]
"""``[step, time, min, max, last]`` each, as `series.drawn` has them."""


def bands(charts: Sequence[dict[str, Any]], by: By) -> list[dict[str, Any]]:
    """A band of each key and attempt, its points ``[step, time, min, max, median]``; *charts* as `series.drawn` has them.

    Where samples are not finite there is ``nonfinite`` as well: of each point how many, of all ranks together. The buckets
    are those of the rank that has most. A bucket of another rank belongs to the first that does not end before it.
    """
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for one in charts:
        groups.setdefault((one["run"], one["attempt"], one["key"]), []).append(one)
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
    longest: _Points = max((one["points"] for one in ranks), key=len)
    ends = [point[axis] for point in longest]
    lows: list[list[float]] = [[] for _ in ends]
    highs: list[list[float]] = [[] for _ in ends]
    lasts: list[dict[int, float]] = [{} for _ in ends]
    odd = [0] * len(ends)
    for number, one in enumerate(ranks):
        points: _Points = one["points"]
        for point, count in zip(points, one.get("nonfinite") or repeat(0), strict=False):
            place = min(bisect_left(ends, point[axis]), len(ends) - 1)
            lows[place].append(float(point[2]))
            highs[place].append(float(point[3]))
            lasts[place][number] = float(point[4])
            odd[place] += count
    found = [
        [*point[:2], *map(json_number, (_of(min, low), _of(max, high), _of(median, list(last.values()))))]
        for point, low, high, last in zip(longest, lows, highs, lasts, strict=True)
    ]
    return {"points": found, **({"nonfinite": odd} if any(odd) else {})}


def _of(choose: Any, values: Sequence[float]) -> float:
    """Of those that are not NaN; NaN when all are."""
    known = [one for one in values if not isnan(one)]
    return float(choose(known)) if known else float("nan")
