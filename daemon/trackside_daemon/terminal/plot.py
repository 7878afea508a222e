"""The curves of a run, and their plots in braille characters, each with two dots across and four down."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, pairwise, repeat
from math import isfinite, nan
from typing import Any, NamedTuple

from trackside_daemon.history.read.series import LOSSES
from trackside_daemon.terminal.styled_lines import ABSENT, Line, fit, line_width, short_number, to_float, with_prefix

_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # bits of a character's dots, by column and row
_EMPTY = 0x2800
MIN_ROWS = 4  # rows of the smallest plot: a title, an axis, and two for the curve

KEYS = (*LOSSES, "tokens", "samples")
LEAST_POINTS = 40  # points of a loss from which its last half may be drawn alone
FLAT = 0.25  # share of the whole range that the last half fills at most then


class Point(NamedTuple):
    """A bucket of steps on a curve; all numbers are finite."""

    step: float
    low: float
    high: float
    last: float


class PlottedCurve(NamedTuple):
    """A curve with its title."""

    title: str  # name and newest value
    points: Sequence[Point] = ()  # points in order; where the step falls, as between attempts, the line is interrupted
    nonfinite_steps: Sequence[float] = ()  # last steps of the buckets with NaN or infinities
    baseline: float | None = None  # highest lower end of the value axis; None for the lowest value


def plot(curve: PlottedCurve, width: int, height: int) -> list[Line]:
    """Return *height* lines: the title, the curve next to its extremes, and the axis of steps with its marks."""
    rows = height - 2
    steps = [*(point.step for point in curve.points), *curve.nonfinite_steps]
    if not steps:
        return [fit(line, width) for line in ([(curve.title, "title")], [("no data yet", "dim")], *([[]] * rows))]
    low, high = _range(curve)
    labels = [short_number(high), *([""] * (rows - 2)), short_number(low)] if curve.points else [ABSENT] * rows
    label_width = max(map(len, labels))
    columns = max(1, width - label_width - 1)
    first, last = min(steps), max(steps)
    across = [_position(point.step, first, last) for point in curve.points]
    grid = _grid(curve.points, across, (low, high), columns, rows)
    lines: list[Line] = [[(curve.title, "title")]]
    lines += [
        [(f"{label:>{label_width}} ", "dim"), ("".join(map(_character, row)), "good")]
        for label, row in zip(labels, grid, strict=True)
    ]
    lines.append([(" " * (label_width + 1), ""), *_axis(curve.nonfinite_steps, first, last, columns)])
    return [fit(line, width) for line in lines]


def _range(curve: PlottedCurve) -> tuple[float, float]:
    """Return the lowest and highest value of the axis."""
    if not curve.points:
        return 0.0, 1.0
    baseline = [] if curve.baseline is None else [curve.baseline]
    return min([*baseline, *(point.low for point in curve.points)]), max(point.high for point in curve.points)


def _position(value: float, low: float, high: float) -> float:
    """Return the position of a value between *low* and *high*, from 0 to 1."""
    # Halved first, because the difference of two finite numbers may be infinite.
    span = high / 2 - low / 2
    return (value / 2 - low / 2) / span if span > 0 else 0.5


def _grid(
    points: Sequence[Point], across: Sequence[float], extent: tuple[float, float], columns: int, rows: int
) -> list[list[int]]:
    """Return the characters of each row, as code points."""
    grid = [[_EMPTY] * columns for _ in range(rows)]

    def y_of(value: float) -> int:
        return round((1 - _position(value, *extent)) * (4 * rows - 1))

    def fill(x: int, top: int, bottom: int) -> None:
        for y in range(top, bottom + 1):
            grid[y // 4][x // 2] |= _DOTS[x % 2][y % 4]

    before: tuple[int, int, float] | None = None
    for point, position in zip(points, across, strict=True):
        x = round(position * (2 * columns - 1))
        y = y_of(point.last)
        if before is not None and point.step > before[2]:
            _connect(fill, before[:2], (x, y))
        fill(x, y_of(point.high), y_of(point.low))
        before = x, y, point.step
    return grid


def _connect(fill: Callable[[int, int, int], None], start: tuple[int, int], end: tuple[int, int]) -> None:
    """Draw a line without gaps."""
    (x0, y0), (x1, y1) = start, end
    y = y0
    for x in range(x0 + 1, x1 + 1):
        next_y = round(y0 + (y1 - y0) * (x - x0) / (x1 - x0))
        fill(x, min(y, next_y), max(y, next_y))
        y = next_y


def _character(code: int) -> str:
    # Some fonts draw empty circles for a braille character without dots.
    return " " if code == _EMPTY else chr(code)


def _axis(nonfinite_steps: Sequence[float], first: float, last: float, columns: int) -> Line:
    """Return the first and last step, with a ``!`` below each value that is not finite."""
    left, right = f"step {first:.0f}", f"{last:.0f}"
    gap = columns - len(left) - len(right)
    line: Line = [(left + " " * gap + right if gap > 0 else right.rjust(columns), "dim")]
    for column in sorted({round(_position(step, first, last) * (columns - 1)) for step in nonfinite_steps}):
        line = _with_mark(line, column)
    return line


def _with_mark(line: Line, column: int) -> Line:
    """Return a line with a mark at a column of its last piece."""
    *before, (text, style) = line
    at = column - line_width(before)
    return [*before, (text[:at], style), ("!", "critical"), (text[at + 1 :], style)]


class _Bucket(NamedTuple):
    step: float
    time: float
    low: float
    high: float
    last: float
    nonfinite: int


def loss_curve(series: Sequence[Mapping[str, Any]], run: Mapping[str, Any]) -> PlottedCurve:
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
            return PlottedCurve(title, shown, marks)
    return PlottedCurve("loss")


def _begin(points: Sequence[Point]) -> float | None:
    """Return the step from which a loss is drawn; None to draw all."""
    if len(points) < LEAST_POINTS:
        return None
    middle = (points[0].step + points[-1].step) / 2
    half = [point for point in points if point.step >= middle]

    def extent(some: Sequence[Point]) -> float:
        return max(point.high for point in some) - min(point.low for point in some)

    return middle if extent(half) < FLAT * extent(points) else None


def throughput_curve(series: Sequence[Mapping[str, Any]], run: Mapping[str, Any]) -> PlottedCurve:
    """Return tokens per second by step; samples or steps per second if the run pushes no tokens.

    The curve is of one rank; if there are several, the title has their newest sum. The value at a bucket's last step
    counts for all steps of the bucket.
    """
    for key in ("tokens", "samples"):
        if points := list(_rates(list(_buckets(series, key)), in_steps=False)):
            rank = _rank(series, key, run)
            total = f", all {with_prefix(run.get(f'{key}_per_second'))}" if rank else ""
            return PlottedCurve(f"{key}/s {with_prefix(points[-1].last)}{rank}{total}", points, baseline=0.0)
    points = next(filter(None, (list(_rates(list(_buckets(series, key)), in_steps=True)) for key in LOSSES)), [])
    return PlottedCurve(f"steps/s {short_number(points[-1].last)}" if points else "throughput", points, baseline=0.0)


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
