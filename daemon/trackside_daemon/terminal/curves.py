"""Curves of a run, from what `/api/v1/series` says."""

from __future__ import annotations

from itertools import pairwise
from math import isfinite, nan
from typing import TYPE_CHECKING, Any, NamedTuple

from trackside_daemon.history.series import LOSSES
from trackside_daemon.terminal.amounts import brief, large, real
from trackside_daemon.terminal.plot import Curve, Dot

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

KEYS = (*LOSSES, "tokens", "samples")


class _Bucket(NamedTuple):
    step: float
    time: float
    low: float
    high: float
    last: float


def loss(series: Sequence[Mapping[str, Any]], *, many: bool = False) -> Curve:
    """The loss by step, with marks where it was not finite; of a run with *many* ranks it says whose."""
    for key in LOSSES:
        if found := list(_buckets(series, key)):
            dots = [dot for one in found if (dot := _dot(one)) is not None]
            marked = [one.step for one in found if not all(map(isfinite, one[2:]))]
            return Curve(f"{key} {brief(found[-1].last)}{_rank(series, key, many=many)}", dots, marked)
    return Curve("loss")


def throughput(series: Sequence[Mapping[str, Any]], *, many: bool = False) -> Curve:
    """Tokens a second by step; samples or steps of a run that says no tokens.

    What a bucket's last step had is taken for all of its steps.
    """
    for key in ("tokens", "samples"):
        if dots := list(_rates(list(_buckets(series, key)), whole=False)):
            return Curve(f"{key}/s {large(dots[-1].last)}{_rank(series, key, many=many)}", dots, floor=0.0)
    dots = next(filter(None, (list(_rates(list(_buckets(series, key)), whole=True)) for key in LOSSES)), [])
    return Curve(f"steps/s {brief(dots[-1].last)}" if dots else "throughput", dots, floor=0.0)


def _rates(found: Sequence[_Bucket], *, whole: bool) -> Iterator[Dot]:
    """Amounts a second, or steps."""
    for before, one in pairwise(found):
        seconds, steps = one.time - before.time, one.step - before.step
        rate = steps * (1.0 if whole else one.last) / seconds if seconds > 0 and steps > 0 else nan
        if isfinite(rate):
            yield Dot(one.step, rate, rate, rate)


def _dot(one: _Bucket) -> Dot | None:
    """What is finite of a bucket."""
    finite = [value for value in one[2:] if isfinite(value)]
    if not finite:
        return None
    return Dot(one.step, min(finite), max(finite), one.last if isfinite(one.last) else finite[0])


def _buckets(series: Sequence[Mapping[str, Any]], key: str) -> Iterator[_Bucket]:
    """Those of all attempts, one behind the other."""
    for one in series:
        points = one.get("points") if one.get("key") == key else ()
        for point in points if isinstance(points, list) else ():
            numbers = [real(value) for value in point] if isinstance(point, list) else []
            known = [number for number in numbers if number is not None]
            if len(known) == len(numbers) == 5 and isfinite(known[0]):
                yield _Bucket(*known)


def _rank(series: Sequence[Mapping[str, Any]], key: str, *, many: bool) -> str:
    """Whose it is, where a run has several ranks."""
    rank = next((one.get("rank") for one in series if one.get("key") == key), None)
    return f"  of rank {rank}" if many and rank is not None else ""
