"""Curves of a run, from the buckets of `/api/v1/series`."""

from __future__ import annotations

from itertools import chain, pairwise, repeat
from math import isfinite, nan
from typing import TYPE_CHECKING, Any, NamedTuple

from trackside_daemon.history.read.series import LOSSES
from trackside_daemon.terminal.formatting import short_number, to_float, with_prefix
from trackside_daemon.terminal.plot import Curve, Point

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

KEYS = (*LOSSES, "tokens", "samples")
LEAST_POINTS = 40  # points of a loss from which its last half may be drawn alone
FLAT = 0.25  # share of the whole range that the last half fills at most then


class _Bucket(NamedTuple):
    step: float
    time: float
    low: float
    high: float
    last: float
    nonfinite: int


def loss(series: Sequence[Mapping[str, Any]], run: Mapping[str, Any]) -> Curve:
    """Return the loss by step, with marks at NaN and infinities; the title names the rank if there are several.

    Where the loss has fallen much, the curve is that of the last half of the steps, whose differences would not be visible.
    """
    for key in LOSSES:
        if buckets := list(_buckets(series, key)):
            points = [point for bucket in buckets if (point := _point(bucket)) is not None]
            nonfinite = sum(bucket.nonfinite for bucket in buckets)
            count = f"  !{short_number(nonfinite)} not finite" if nonfinite else ""
            begin = _begin(points)
            half = "" if begin is None else ", last half"
            title = f"{key} {short_number(buckets[-1].last)}{_rank(series, key, run)}{half}{count}"
            shown = [point for point in points if begin is None or point.step >= begin]
            marks = [bucket.step for bucket in buckets if bucket.nonfinite and (begin is None or bucket.step >= begin)]
            return Curve(title, shown, marks)
    return Curve("loss")


def _begin(points: Sequence[Point]) -> float | None:
    """Return the step from which a loss is drawn; None to draw all."""
    if len(points) < LEAST_POINTS:
        return None
    middle = (points[0].step + points[-1].step) / 2
    half = [point for point in points if point.step >= middle]

    def extent(some: Sequence[Point]) -> float:
        return max(point.high for point in some) - min(point.low for point in some)

    return middle if extent(half) < FLAT * extent(points) else None


def throughput(series: Sequence[Mapping[str, Any]], run: Mapping[str, Any]) -> Curve:
    """Return tokens per second by step; samples or steps per second if the run pushes no tokens.

    The curve is of one rank; if there are several, the title has their newest sum. The value at a bucket's last step
    counts for all steps of the bucket.
    """
    for key in ("tokens", "samples"):
        if points := list(_rates(list(_buckets(series, key)), in_steps=False)):
            rank = _rank(series, key, run)
            total = f", all {with_prefix(run.get(f'{key}_per_second'))}" if rank else ""
            return Curve(f"{key}/s {with_prefix(points[-1].last)}{rank}{total}", points, baseline=0.0)
    points = next(filter(None, (list(_rates(list(_buckets(series, key)), in_steps=True)) for key in LOSSES)), [])
    return Curve(f"steps/s {short_number(points[-1].last)}" if points else "throughput", points, baseline=0.0)


def _rates(buckets: Sequence[_Bucket], *, in_steps: bool) -> Iterator[Point]:
    """Yield the rate per second of the values, or of the steps."""
    for before, bucket in pairwise(buckets):
        seconds = bucket.time - before.time
        steps = bucket.step - before.step
        # Between two attempts the step may fall, and a clock may be set back.
        rate = steps * (1.0 if in_steps else bucket.last) / seconds if seconds > 0 and steps > 0 else nan
        if isfinite(rate):
            yield Point(bucket.step, rate, rate, rate)


def _point(bucket: _Bucket) -> Point | None:
    """Return the finite values of a bucket; None if there are none."""
    finite = [value for value in (bucket.low, bucket.high, bucket.last) if isfinite(value)]
    if not finite:
        return None
    return Point(bucket.step, min(finite), max(finite), bucket.last if isfinite(bucket.last) else finite[0])


def _buckets(series: Sequence[Mapping[str, Any]], key: str) -> Iterator[_Bucket]:
    """Yield the buckets of all attempts, in order."""
    for attempt in series:
        rows, counts = (attempt.get(name) if attempt.get("key") == key else () for name in ("points", "nonfinite"))
        padded_counts = chain(counts if isinstance(counts, list) else (), repeat(0))
        for row, count in zip(rows if isinstance(rows, list) else (), padded_counts, strict=False):
            values = [to_float(value) for value in row] if isinstance(row, list) else []
            numbers = [number for number in values if number is not None]
            if len(numbers) == len(values) == 5 and isfinite(numbers[0]):
                step, time, low, high, last = numbers
                nonfinite = max(_count(count), not (isfinite(low) and isfinite(high) and isfinite(last)))
                yield _Bucket(step, time, low, high, last, nonfinite)


def _count(value: object) -> int:
    number = to_float(value)
    return int(number) if number is not None and isfinite(number) else 0


def _rank(series: Sequence[Mapping[str, Any]], key: str, run: Mapping[str, Any]) -> str:
    """Return the rank of the series, if the run has several ranks."""
    rank = next((attempt.get("rank") for attempt in series if attempt.get("key") == key), None)
    world_size = to_float(run.get("world_size")) or 1
    return f"  rank {rank} of {world_size:.0f}" if world_size > 1 and rank is not None else ""
