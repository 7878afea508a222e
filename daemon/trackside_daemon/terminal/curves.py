"""Curves of a run, from what `/api/v1/series` says."""

from __future__ import annotations

from itertools import chain, pairwise, repeat
from math import isfinite, nan
from typing import TYPE_CHECKING, Any, NamedTuple

from trackside_daemon.history.read.series import LOSSES
from trackside_daemon.terminal.formatting import brief, large, real
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
    odd: int


def loss(series: Sequence[Mapping[str, Any]], run: Mapping[str, Any]) -> Curve:
    """The loss by step, with marks where it was not finite, and how often; of a run with many ranks it says whose."""
    for key in LOSSES:
        if found := list(_buckets(series, key)):
            dots = [dot for one in found if (dot := _dot(one)) is not None]
            odd = sum(one.odd for one in found)
            whose, counted = _rank(series, key, run), f"  !{brief(odd)} not finite" if odd else ""
            title = f"{key} {brief(found[-1].last)}{whose}{counted}"
            return Curve(title, dots, [one.step for one in found if one.odd])
    return Curve("loss")


def throughput(series: Sequence[Mapping[str, Any]], run: Mapping[str, Any]) -> Curve:
    """Tokens a second by step; samples or steps of a run that says no tokens. Of one rank, and of many the newest sum.

    What a bucket's last step had is taken for all of its steps.
    """
    for key in ("tokens", "samples"):
        if dots := list(_rates(list(_buckets(series, key)), whole=False)):
            whose, together = _rank(series, key, run), large(run.get(f"{key}_per_second"))
            title = f"{key}/s {large(dots[-1].last)}{whose}{f', all {together}' if whose else ''}"
            return Curve(title, dots, floor=0.0)
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
    finite = [value for value in one[2:5] if isfinite(value)]
    if not finite:
        return None
    return Dot(one.step, min(finite), max(finite), one.last if isfinite(one.last) else finite[0])


def _buckets(series: Sequence[Mapping[str, Any]], key: str) -> Iterator[_Bucket]:
    """Those of all attempts, one behind the other."""
    for one in series:
        points, counts = (one.get(name) if one.get("key") == key else () for name in ("points", "nonfinite"))
        every = chain(counts if isinstance(counts, list) else (), repeat(0))
        for point, count in zip(points if isinstance(points, list) else (), every, strict=False):
            numbers = [real(value) for value in point] if isinstance(point, list) else []
            known = [number for number in numbers if number is not None]
            if len(known) == len(numbers) == 5 and isfinite(known[0]):
                step, time, low, high, last = known
                odd = max(_count(count), not (isfinite(low) and isfinite(high) and isfinite(last)))
                yield _Bucket(step, time, low, high, last, odd)


def _count(value: object) -> int:
    found = real(value)
    return int(found) if found is not None and isfinite(found) else 0


def _rank(series: Sequence[Mapping[str, Any]], key: str, run: Mapping[str, Any]) -> str:
    """Whose it is, where a run has several ranks."""
    rank = next((one.get("rank") for one in series if one.get("key") == key), None)
    world = real(run.get("world_size")) or 1
    return f"  rank {rank} of {world:.0f}" if world > 1 and rank is not None else ""
